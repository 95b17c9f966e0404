#!/bin/sh
# Three replays in a row at rising rates, each a job of its own that waits for the one before.
#   RAY_AUTH_MODE=token deploy/jobs/rates.sh /data/conversation.jsonl /data/rates
set -eu
here=$(dirname "$0")
for rate in 0.5 1 2; do
  "$here/replay.sh" "$1" "$2/$rate" --rate "$rate"
done
