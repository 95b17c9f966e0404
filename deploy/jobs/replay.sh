#!/bin/sh
# A trace replay as a Ray job, against the application `asap` of the same cluster; progress goes to the job's log.
#   RAY_AUTH_MODE=token deploy/jobs/replay.sh /data/conversation.jsonl /data/report [options of asap-ray replay]
# The paths are those of the node that runs the job: the head, unless you say otherwise.
set -eu
: "${RAY_AUTH_MODE:?set it as it is on the cluster: token or disabled}"
trace=${1:?the trace, a Mooncake JSONL or an Azure CSV}
out=${2:?the directory of replay.json and replay.html}
shift 2
exec ray job submit --address "${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}" -- \
  asap-ray replay --app asap --trace "$trace" --out "$out" "$@"
