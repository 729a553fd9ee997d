# Writes the attempt's token to a file that only the agent's user can read, and executes the command in the arguments.
(umask 077 && printf '%s' "$TRIALKEEPER_TOKEN" >"$TRIALKEEPER_TOKEN_FILE") || {
  echo "trialkeeper: error: cannot write $TRIALKEEPER_TOKEN_FILE" >&2
  exit 125
}
unset TRIALKEEPER_TOKEN
exec "$@"
