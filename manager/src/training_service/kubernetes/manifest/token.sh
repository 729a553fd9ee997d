# Becomes the command that the arguments are, once the agent can read this attempt's token.
(umask 077 && printf '%s' "$TRIALKEEPER_TOKEN" >"$TRIALKEEPER_TOKEN_FILE") || {
  echo "trialkeeper: error: cannot write $TRIALKEEPER_TOKEN_FILE" >&2
  exit 125
}
unset TRIALKEEPER_TOKEN
exec "$@"
