# $3 is the folder of the cache, which remains after the pod's end. It contains the files that earlier pods downloaded; the
# name of each file contains its SHA-256. $4 is the SHA-256 of the agent, and $5 that of the code. They are empty if the pod
# does not need the file. A failure of the cache never fails the trial.
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
  say "the pod does not use the cache: the image has neither sha256sum nor python3 to check files"
  cache=
fi
# Copies the file with the SHA-256 $1 to $2 if the cache contains it. The check reads the copy, because other pods can change
# the file in the cache.
take() {
  kept=$cache/trialkeeper-$1
  [ -n "$cache" ] && [ -n "$1" ] && [ -f "$kept" ] && [ ! -L "$kept" ] || return
  if cp "$kept" "$2" 2>/dev/null && [ "$(sum "$2")" = "$1" ]; then
    # Pods remove files that have not been used for 30 days, so the time of use is renewed. It stays if another user owns the
    # file.
    touch "$kept" 2>/dev/null
    return 0
  fi
  say "$kept is damaged or cannot be read; the pod downloads it again"
  rm -f "$2"
  return 1
}
# Stores the file $2 in the cache for later pods if its SHA-256 is $1. Removes the files that no pod has used for 30 days.
keep() {
  [ -n "$cache" ] && [ -n "$1" ] || return 0
  if [ "$(sum "$2")" != "$1" ]; then
    say "$2 is not kept in the cache: the manager's file has changed since the search began"
    return 0
  fi
  why=$({
    # The rename prevents other pods from reading an incomplete file. Several pods may store the same file at the same time.
    part=$(mktemp "$cache/trialkeeper-part-XXXXXX") || exit
    cp "$2" "$part" && chmod 644 "$part" && mv -f "$part" "$cache/trialkeeper-$1" && exit
    rm -f "$part"
    exit 1
  } 2>&1) || say "$2 is not kept in the cache ($(printf '%s\n' "$why" | tail -n 1))"
  find "$cache" -maxdepth 1 -type f -name 'trialkeeper-*' -mtime +30 -exec rm -f {} \; 2>/dev/null
  return 0
}
