# Replaces itself with trialkeeper. $0 is the name of the agent in the image. If the image lacks it, the pod downloads the
# agent from the manager. $1 is the trial's command, and $2 is the folder for the download. With a cache, cache.sh precedes
# this script, and the arguments of cache.sh follow.
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
# The files that the pod still has to download.
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
# Ignores a program that exists but cannot download, such as the python3 of python3-minimal. It would fail on every try, and
# the error would look like an unreachable manager.
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
        # BusyBox's wget has no --ca-certificate: it would send the trial's token to any server at this address.
        *)
          why="cannot check the manager's certificate"
          [ -z "${TRIALKEEPER_CA_FILE:-}" ] ;;
      esac ;;
  esac && return
  crippled="$crippled; $1: $(printf '%s\n' "$why" | tail -n 1)"
  return 1
}
way=
# curl is first because it starts fastest.
for program in curl python3 wget; do
  [ -n "$wants_agent$wants_code" ] || break
  if works "$program"; then way=$program; break; fi
done
[ -n "$way" ] || [ -z "$wants_agent" ] || fail "the image has no trialkeeper, and none of curl, python3 and wget can download it${crippled:+ (${crippled#; })}; set agentImage, or add curl, python3 or trialkeeper to the image"
# Downloads the file that the manager serves under the name $1 to the path $2.
get() {
  # A proxy from the image or the template is for the trial only. Pods reach the manager directly, and so does the agent.
  # This function runs in a subshell, so the trial keeps its proxy.
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
    # Code may be large, so the download has no total time limit. It ends when no data arrives for 10 s.
    curl) printf 'header = "Authorization: Bearer %s"\n' "$token" |
      curl -fsS -K - ${ca:+--cacert "$ca"} --connect-timeout 10 --speed-limit 1 --speed-time 10 -o "$2" "$url" ;;
    # Every process in the pod can read a program's arguments. BusyBox's wget accepts the token only as an argument.
    wget) if [ -n "$gnu" ]; then
        (umask 077 && printf 'header = Authorization: Bearer %s\n' "$token" >"$2.rc") &&
          WGETRC=$2.rc wget -q -T 10 -t 1 ${ca:+--ca-certificate="$ca"} -O "$2" "$url"
      else
        wget -q -T 10 --header="Authorization: Bearer $token" -O "$2" "$url"
      fi ;;
  esac
}
# The pod downloads the code at the same time as the agent, and tries only once. If the download fails, the agent repeats it
# and reports the reason of a failure.
fetching=
if [ -n "$wants_code" ] && [ -n "$way" ]; then
  { get code "$code" >/dev/null 2>&1 && keep "${5:-}" "$code"; } &
  fetching=$!
fi
# At an address that never answers, each try takes 10 s. The trial fails after 30 tries, which take six minutes.
tries=0
until [ -z "$wants_agent" ] || said=$(get program "$to.part" 2>&1); do
  tries=$((tries + 1))
  # The last line of the output gives the reason.
  last=$(printf '%s\n' "$said" | tail -n 1)
  # Users who read the pod's log during the tries see each new reason once.
  [ "$last" = "${told:-}" ] || echo "trialkeeper: cannot fetch trialkeeper from the manager yet ($last)" >&2
  told=$last
  [ "$tries" -lt 30 ] || fail "cannot fetch trialkeeper from the manager ($last); check that this pod can reach the manager's address (--advertise)"
  sleep 2
done
rm -f "$to.part.rc"
if [ -z "$agent" ]; then
  chmod 755 "$to.part" && mv "$to.part" "$to" || fail "cannot write $to"
  "$to" version >/dev/null 2>&1 || fail "the manager's trialkeeper does not run in this image; pass --agent with a static build (cargo static) for this node's processor"
  [ -z "$wants_agent" ] || keep "${4:-}" "$to"
  agent=$to
fi
if [ -n "$fetching" ]; then
  if wait "$fetching"; then export TRIALKEEPER_CODE_ARCHIVE="$code"; else rm -f "$code"; fi
  rm -f "$code.rc"
fi
exec "$agent" run --shell "$1"
