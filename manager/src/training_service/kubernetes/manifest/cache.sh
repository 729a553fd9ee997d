# A folder that outlives the pod, $3, holds what earlier pods fetched, each file under its SHA-256. $4 is the SHA-256 of the
# agent and $5 that of the code; they are empty where the pod needs none. A cache that fails is no reason to fail the trial.
cache=$3
say() { echo "trialkeeper: $1" >&2; }
# Prints the SHA-256 of the file $1.
sum() {
  if command -v sha256sum >/dev/null 2>&1; then
    said=$(sha256sum <"$1") && echo "${said%% *}"
  else
    python3 -c 'import hashlib, sys
sum = hashlib.sha256()
for piece in iter(lambda: sys.stdin.buffer.read(65536), b""): sum.update(piece)
print(sum.hexdigest())' <"$1"
  fi 2>/dev/null
}
if [ -z "$(sum /dev/null)" ]; then
  say "the cache is not used: the image has neither sha256sum nor python3 to check it with"
  cache=
fi
# Copies the file with the SHA-256 $1 to $2, if it is there. The copy is what is checked: other pods write to the cache.
take() {
  kept=$cache/trialkeeper-$1
  [ -n "$cache" ] && [ -n "$1" ] && [ -f "$kept" ] && [ ! -L "$kept" ] || return
  if cp "$kept" "$2" 2>/dev/null && [ "$(sum "$2")" = "$1" ]; then
    # For the pod that looks for old ones. Another user's file keeps its time.
    touch "$kept" 2>/dev/null
    return 0
  fi
  say "$kept is damaged or cannot be read, and is fetched anew"
  rm -f "$2"
  return 1
}
# Keeps the file $2, whose SHA-256 is to be $1, for later pods, and removes what none has taken for 30 days.
keep() {
  [ -n "$cache" ] && [ -n "$1" ] || return 0
  if [ "$(sum "$2")" != "$1" ]; then
    say "$2 is not kept in the cache: the manager gave out another than it had when the search began"
    return 0
  fi
  why=$({
    # No pod finds half of a file, and several may keep the same one at a time.
    part=$(mktemp "$cache/trialkeeper-part-XXXXXX") || exit
    cp "$2" "$part" && chmod 644 "$part" && mv -f "$part" "$cache/trialkeeper-$1" && exit
    rm -f "$part"
    exit 1
  } 2>&1) || say "$2 is not kept in the cache ($(printf '%s\n' "$why" | tail -n 1))"
  find "$cache" -maxdepth 1 -type f -name 'trialkeeper-*' -mtime +30 -exec rm -f {} \; 2>/dev/null
  return 0
}
