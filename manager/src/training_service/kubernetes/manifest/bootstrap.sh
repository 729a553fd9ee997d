# Becomes trialkeeper: the one that is there, under the name $0, or the one that the manager hands out. $1 is the trial's
# command, $2 a folder to keep it in. With a cache, cache.sh stands before this, and its arguments follow.
trap 'exit 143' TERM INT
agent=
if command -v "$0" >/dev/null 2>&1; then
  [ $# -gt 2 ] || exec "$0" run --shell "$1"
  agent=$0
fi
fail() {
  echo "trialkeeper: error: $1" >&2
  echo "$1" >/dev/termination-log 2>/dev/null
  exit 125
}
folder=$2/bin
to=$folder/trialkeeper
code=$2/code.tar.gz
mkdir -p "$folder" || fail "cannot write $folder"
# What the pod fetches.
wants_agent=
[ -n "$agent" ] || wants_agent=yes
wants_code=
case ,${TRIALKEEPER_FETCH:-}, in
  *,code,*) wants_code=yes ;;
esac
if [ $# -gt 2 ]; then
  [ -n "$agent$4" ] || fail "there is no $0 in this container"
  if [ -z "$agent" ] && take "$4" "$to.part"; then wants_agent=; fi
  if [ -n "$wants_code" ] && take "$5" "$code"; then
    wants_code=
    export TRIALKEEPER_CODE_ARCHIVE="$code"
  fi
else
  keep() { :; }
fi
# A program that is there and cannot do its work, such as the python3 of python3-minimal, is none: it would fail at every
# try, and look as if the manager could not be reached.
imports='import ssl, shutil, sys, urllib.request'
gnu=
crippled=
works() {
  command -v "$1" >/dev/null 2>&1 || return
  case $1 in
    python3) why=$(python3 -c "$imports" 2>&1) ;;
    curl) why=$(curl --version 2>&1) ;;
    wget)
      case $(wget --version 2>/dev/null) in
        *GNU*) gnu=yes ;;
        # BusyBox's knows no --ca-certificate, and would give the trial's token to whoever answers.
        *)
          why="cannot check the manager's certificate"
          [ -z "${TRIALKEEPER_CA_FILE:-}" ] ;;
      esac ;;
  esac && return
  crippled="$crippled; $1: $(printf '%s\n' "$why" | tail -n 1)"
  return 1
}
way=
# The quickest to start first.
for program in curl python3 wget; do
  [ -n "$wants_agent$wants_code" ] || break
  if works "$program"; then way=$program; break; fi
done
[ -n "$way" ] || [ -z "$wants_agent" ] || fail "the image has no trialkeeper, and none of curl, python3 and wget to fetch it with${crippled:+ that works (${crippled#; })}; set agentImage, or put curl, python3 or trialkeeper into the image"
# Keeps what the manager gives out under the name $1 in the file $2.
get() {
  # A proxy of the image's or the template's is the trial's: the manager is as near as the pods are, and the agent
  # asks no proxy either. (This runs in a shell of its own.)
  unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
  read -r url <"$TRIALKEEPER_MANAGER_FILE"
  url=$url/api/v1/agent/$1
  read -r token <"$TRIALKEEPER_TOKEN_FILE"
  ca=${TRIALKEEPER_CA_FILE:-}
  case $way in
    python3) printf '%s\n' "$url" "$token" "$ca" "$2" | python3 -c "$imports"'
url, token, ca, to = sys.stdin.read().split("\n")[:4]
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + token})
context = ssl.create_default_context(cafile=ca or None)
with urllib.request.urlopen(request, timeout=10, context=context) as answer, open(to, "wb") as file:
    shutil.copyfileobj(answer, file)
' ;;
    # Code may be large: it is given up when nothing comes any more.
    curl) printf 'header = "Authorization: Bearer %s"\n' "$token" |
      curl -fsS -K - ${ca:+--cacert "$ca"} --connect-timeout 10 --speed-limit 1 --speed-time 10 -o "$2" "$url" ;;
    # Everybody in the pod can read a program's arguments; BusyBox's knows no other way.
    wget) if [ -n "$gnu" ]; then
        (umask 077 && printf 'header = Authorization: Bearer %s\n' "$token" >"$2.rc") &&
          WGETRC=$2.rc wget -q -T 10 -t 1 ${ca:+--ca-certificate="$ca"} -O "$2" "$url"
      else
        wget -q -T 10 --header="Authorization: Bearer $token" -O "$2" "$url"
      fi ;;
  esac
}
# The code comes beside the agent, and is tried once: the agent fetches what is not there, and says why it cannot.
fetching=
if [ -n "$wants_code" ] && [ -n "$way" ]; then
  { get code "$code" >/dev/null 2>&1 && keep "${5:-}" "$code"; } &
  fetching=$!
fi
# An address that swallows everything costs 10 s a try: six minutes in all, and the trial has failed.
tries=0
until [ -z "$wants_agent" ] || said=$(get program "$to.part" 2>&1); do
  tries=$((tries + 1))
  # The last line says what is wrong.
  last=$(printf '%s\n' "$said" | tail -n 1)
  # For who looks into the pod meanwhile.
  [ "$last" = "${told:-}" ] || echo "trialkeeper: cannot fetch trialkeeper from the manager yet ($last)" >&2
  told=$last
  [ "$tries" -lt 30 ] || fail "cannot fetch trialkeeper from the manager ($last); can this pod reach it? See --advertise"
  sleep 2
done
rm -f "$to.part.rc"
if [ -z "$agent" ]; then
  chmod 755 "$to.part" && mv "$to.part" "$to" || fail "cannot write $to"
  "$to" version >/dev/null 2>&1 || fail "the manager's trialkeeper does not run in this image: is it the static build (cargo static), and for this node's processor? See --agent"
  [ -z "$wants_agent" ] || keep "${4:-}" "$to"
  agent=$to
fi
if [ -n "$fetching" ]; then
  if wait "$fetching"; then export TRIALKEEPER_CODE_ARCHIVE="$code"; else rm -f "$code"; fi
  rm -f "$code.rc"
fi
exec "$agent" run --shell "$1"
