// Package monitoring tests artifacts/monitoring with the libraries of Prometheus: alerts fire when
// they should, and each metric in an alert, in the dashboard and in docs/monitoring.md exists in a
// scrape of the real code.
package monitoring
