package keychain

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
)

func TestExplain(t *testing.T) {
	internal := &contract.Error{Domain: contract.VZErrorDomain, Code: 1, Message: "Internal Virtualization error."}
	for name, tc := range map[string]struct {
		err    error
		exit   int
		runErr error
		locked bool
	}{
		"a locked keychain":                {err: internal, exit: 36, locked: true},
		"a locked keychain, another code":  {err: &contract.Error{Domain: "NSOSStatusErrorDomain", Code: -9}, exit: 36, locked: true},
		"an open keychain":                 {err: internal, exit: 0},
		"no keychain":                      {err: internal, exit: 50},
		"no security":                      {err: internal, runErr: errors.New("no such file")},
		"the limit, and a locked keychain": {err: &contract.Error{Domain: contract.VZErrorDomain, Code: 6}, exit: 36},
		"another error":                    {err: errors.New("disk: no such file"), exit: 36},
	} {
		t.Run(name, func(t *testing.T) {
			s := Security{Run: func(_ context.Context, name string, args ...string) (int, error) {
				assert.Equal(t, "/usr/bin/security", name)
				assert.Equal(t, []string{"show-keychain-info"}, args)
				return tc.exit, tc.runErr
			}}
			err := s.Explain(t.Context(), tc.err)
			assert.Equal(t, tc.locked, contract.IsKeychainLocked(err))
			if !tc.locked {
				assert.Equal(t, tc.err, err)
			}
		})
	}
}

func TestExitCode(t *testing.T) {
	code, err := exitCode(t.Context(), "sh", "-c", "exit 36")
	require.NoError(t, err)
	assert.Equal(t, 36, code)
	_, err = exitCode(t.Context(), "/no/such/program")
	require.Error(t, err)
}
