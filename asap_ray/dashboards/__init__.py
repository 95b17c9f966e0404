"""Grafana dashboards and Prometheus rules, made from the metrics of `telemetry`."""
