# Container images, as an OCI layout in .dev/images. IMAGES=registry/prefix pushes them (PLAIN_HTTP=1: without TLS), and
# COSIGN_KEY=file signs them there. PLATFORMS=linux/amd64 builds for one platform only.

.PHONY: images

images: ## build the container images into .dev/images, or push them: IMAGES=registry.example.com/macrack
	@go run ./hack/images $(if $(IMAGES),--push=$(IMAGES)) $(if $(PLAIN_HTTP),--plain-http) $(if $(COSIGN_KEY),--cosign-key=$(COSIGN_KEY)) $(if $(PLATFORMS),--platforms=$(PLATFORMS))
