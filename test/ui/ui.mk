# The console, in Chromium.

.PHONY: ui-test
ui-test: ## test the console in Chromium (apt-get install chromium) with a fleet of 1,000 Macs
	@mkdir -p .dev/ui
	@UI_SCREENSHOTS=$(CURDIR)/.dev/ui go test -C test/ui -count=1 -timeout 10m -v .
