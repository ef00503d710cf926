package apiclient

import "k8s.io/client-go/rest"

const protobuf = "application/vnd.kubernetes.protobuf"

// Protobuf returns a copy of config for a client that uses protobuf, and accepts JSON from servers
// without protobuf. It is for clients of built-in types and of macrack.io.
func Protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = protobuf
	config.AcceptContentTypes = protobuf + ",application/json"
	return config
}
