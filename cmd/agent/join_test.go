package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

const testToken = "abcdef.0123456789abcdef"

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(testToken+"\n"), 0o600))
	for _, o := range []*joinOptions{
		{token: testToken}, {tokenFile: file}, {tokenFile: "-", in: strings.NewReader(testToken + "\n")},
	} {
		token, err := o.readToken()
		require.NoError(t, err)
		assert.Equal(t, testToken, token.Bearer())
	}
	for says, o := range map[string]*joinOptions{
		"use either --token or --token-file": {token: testToken, tokenFile: file},
		"--token-file or --token is":         {},
		"no such file":                       {tokenFile: file + "x"},
		"not of the form":                    {tokenFile: "-", in: strings.NewReader(strings.Repeat("x", 1<<20))},
		"(6 and 16 characters, a-z and":      {token: "abcdef.0123456789ABCDEF"},
	} {
		_, err := o.readToken()
		require.ErrorContains(t, err, says)
		assert.NotContains(t, strings.ReplaceAll(err.Error(), "the form "+testToken, ""), "0123456789", "an error shows the token")
	}
}

func TestJoinRefuses(t *testing.T) {
	for says, change := range map[string]func(*joinOptions){
		"--server is required":                    func(o *joinOptions) { o.server = "" },
		"use https://host:port":                   func(o *joinOptions) { o.server = "http://127.0.0.1:1" },
		"the hash of the cluster's CA is missing": func(o *joinOptions) { o.caCertHashes = nil },
		"is not reachable; check the address":     func(*joinOptions) {},
		"state directory: mkdir":                  func(o *joinOptions) { o.stateDir = "/dev/null/x" },
		"use either --token or --token-file":      func(o *joinOptions) { o.tokenFile = "-" },
		"use the form sha256:<64 hexadeci":        func(o *joinOptions) { o.caCertHashes = []string{"md5:0"} },
	} {
		out := &bytes.Buffer{}
		o := &joinOptions{
			server: "https://127.0.0.1:1", token: testToken, caCertHashes: []string{"sha256:" + strings.Repeat("0", 64)},
			nodeName: "mac-1", stateDir: filepath.Join(t.TempDir(), "state"), timeout: time.Minute, out: out, clock: clock.RealClock{},
		}
		change(o)
		require.ErrorContains(t, o.run(t.Context()), says)
		assert.NoFileExists(t, filepath.Join(o.stateDir, kubeconfigName))
	}
}

func TestCompleteNodeName(t *testing.T) {
	name := "mac-7"
	require.NoError(t, completeNodeName(&name, t.TempDir()))
	assert.Equal(t, "mac-7", name)
	name = ""
	require.NoError(t, completeNodeName(&name, t.TempDir()))
	assert.NotEmpty(t, name)
	assert.Equal(t, strings.ToLower(name), name)
}

func TestCommands(t *testing.T) {
	for _, args := range [][]string{{"join"}, {"token", "create", "--ttl", "25h", "mac-1"}, {"doctor", "-o", "yaml"}, {"run", "--launcher=x"}} {
		cmd := newCommand()
		cmd.SetArgs(args)
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		assert.Error(t, cmd.Execute(), args)
	}
}

func TestAddressTowards(t *testing.T) {
	address, err := addressTowards(t.Context(), "https://127.0.0.1:6443")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", address)
	_, err = addressTowards(t.Context(), ":")
	assert.Error(t, err)
}
