# Ray's Metrics tab with our overview in it: source this where `ray start --head` or `asap-ray serve` runs.
#   GRAFANA=http://grafana:3000 PROMETHEUS=http://prometheus:9090 . dashboards/ray_env.sh
# GRAFANA must be reachable from Ray's head; GRAFANA_IN_BROWSER from whoever looks, where that is another address.
export RAY_GRAFANA_HOST="${GRAFANA:-http://127.0.0.1:3000}"
export RAY_GRAFANA_IFRAME_HOST="${GRAFANA_IN_BROWSER:-$RAY_GRAFANA_HOST}"
export RAY_PROMETHEUS_HOST="${PROMETHEUS:-http://127.0.0.1:9090}"
export RAY_PROMETHEUS_NAME="${PROMETHEUS_NAME:-Prometheus}"
export RAY_GRAFANA_DEFAULT_DASHBOARD_UID=asap-overview
