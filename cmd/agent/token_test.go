package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIsLoopback(t *testing.T) {
	for server, want := range map[string]bool{
		"https://127.0.0.1:6443": true, "https://localhost:6443": true, "https://[::1]:6443": true, "https://0.0.0.0:6443": true,
		"https://10.0.0.1:6443": false, "https://kubernetes.example.com": false, "https://localhost.example.com:6443": false,
	} {
		assert.Equal(t, want, isLoopback(server), server)
	}
}
