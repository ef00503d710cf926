package slots

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
)

func TestLaunchd(t *testing.T) {
	var ran []string
	var fail error
	l := &Launchd{UID: 501, run: func(ctx context.Context, name string, args ...string) ([]byte, error) {
		_, bounded := ctx.Deadline()
		assert.True(t, bounded)
		ran = append(ran, name+" "+strings.Join(args, " "))
		return []byte("Could not find service\n"), fail
	}}
	for _, dir := range []contract.SlotDir{"/v/slots/0", "/v/slots/1"} {
		ended, err := l.Launch(dir)
		require.NoError(t, err)
		assert.Nil(t, ended, "launchd does not tell")
	}
	assert.Equal(t, []string{"/bin/launchctl kickstart gui/501/io.macrack.vm.0", "/bin/launchctl kickstart gui/501/io.macrack.vm.1"}, ran)

	for _, dir := range []contract.SlotDir{"/v/slots/2", "/v/slots/-1", "/v/slots", "/v/slots/x"} {
		_, err := l.Launch(dir)
		require.ErrorContains(t, err, "is not the directory of a slot", "a third VM has no job to run in")
	}
	assert.Len(t, ran, 2)

	fail = errors.New("exit status 113")
	_, err := l.Launch("/v/slots/0")
	require.ErrorContains(t, err, "launchctl kickstart gui/501/io.macrack.vm.0: exit status 113: Could not find service; run `macrack-agent doctor`")
}
