#!/bin/sh
# Prometheus and Grafana of this host get our rules, scrape targets and dashboards; restart both afterwards.
#   sudo deploy/monitoring/install.sh          # DESTDIR=/some/where puts them there instead
# prometheus.yml is left alone where there is one: take rule_files and scrape_configs from ours.
set -eu
dashboards=$(dirname "$0")/../../dashboards
root=${DESTDIR:-}
install -d "$root/etc/prometheus" "$root/etc/grafana/provisioning/datasources" \
  "$root/etc/grafana/provisioning/dashboards" "$root/var/lib/grafana/dashboards/asap-ray"
install -m 644 "$dashboards/prometheus/asap.rules.yml" "$root/etc/prometheus/"
if [ -e "$root/etc/prometheus/prometheus.yml" ]; then
  echo "kept $root/etc/prometheus/prometheus.yml; it needs what is in $dashboards/prometheus/prometheus.yml"
else
  install -m 644 "$dashboards/prometheus/prometheus.yml" "$root/etc/prometheus/"
fi
install -m 644 "$dashboards"/provisioning/datasources/*.yaml "$root/etc/grafana/provisioning/datasources/"
install -m 644 "$dashboards"/provisioning/dashboards/*.yaml "$root/etc/grafana/provisioning/dashboards/"
install -m 644 "$dashboards"/grafana/*.json "$root/var/lib/grafana/dashboards/asap-ray/"
