package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const gib = 1 << 30

// mac is a diskutil of a guest with a disk of 64 GiB.
type mac struct {
	partitions []string // content and GiB
	stores     string
	fails      string
	changes    []string
}

func (m *mac) run(_ context.Context, input, name string, args ...string) ([]byte, error) {
	command := strings.Join(args, " ")
	if m.fails != "" && strings.HasPrefix(command, m.fails) {
		return nil, errors.New("exit status 1")
	}
	switch {
	case name != diskutil:
		return nil, fmt.Errorf("no %s", name)
	case command == "info -plist /":
		return []byte("<plist><dict><key>APFSPhysicalStores</key><array>" + m.stores + "</array></dict></plist>"), nil
	case command == "list -plist disk0":
		var list strings.Builder
		for i, partition := range m.partitions {
			content, size, _ := strings.Cut(partition, " ")
			fmt.Fprintf(&list, "<dict><key>DeviceIdentifier</key><string>disk0s%d</string><key>Content</key><string>%s</string><key>Size</key><integer>%s073741824</integer></dict>",
				i+1, content, size)
		}
		return fmt.Appendf(nil, "<plist><dict><key>AllDisksAndPartitions</key><array><dict><key>DeviceIdentifier</key><string>disk0</string>"+
			"<key>Size</key><integer>%d</integer><key>Partitions</key><array>%s</array></dict></array></dict></plist>", 64*gib, list.String()), nil
	}
	m.changes = append(m.changes, strings.TrimSpace(input+" "+command))
	return nil, nil
}

func TestGrow(t *testing.T) {
	const store = "<dict><key>APFSPhysicalStore</key><string>disk0s2</string></dict>"
	grown := []string{"y\n repairDisk disk0", "apfs resizeContainer disk0s2 0"}
	for name, tc := range map[string]struct {
		mac     mac
		changes []string
		says    string
	}{
		"a larger disk":                           {mac: mac{partitions: []string{"Apple_APFS_ISC 1", "Apple_APFS 41"}, stores: store}, changes: grown},
		"a disk of the image":                     {mac: mac{partitions: []string{"Apple_APFS_ISC 1", "Apple_APFS 71"}, stores: store}},
		"a recovery partition":                    {mac: mac{partitions: []string{"Apple_APFS_ISC 1", "Apple_APFS 31", "Apple_APFS_Recovery 5"}, stores: store}, says: "partition disk0s3 (Apple_APFS_Recovery) follows the system's disk0s2; remove it from the image"},
		"two partitions, but a disk of the image": {mac: mac{partitions: []string{"Apple_APFS_ISC 1", "Apple_APFS 58", "Apple_APFS_Recovery 5", "EFI 5"}, stores: store}},
		"two stores":                              {mac: mac{stores: store + store}, says: "2 physical stores"},
		"another disk":                            {mac: mac{partitions: []string{"Apple_APFS 41"}, stores: store}, says: "no partition disk0s2"},
		"no diskutil":                             {mac: mac{fails: "info"}, says: "exit status 1"},
		"a disk not repairable":                   {mac: mac{partitions: []string{"Apple_APFS_ISC 1", "Apple_APFS 41"}, stores: store, fails: "repairDisk"}, says: "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&diskGrower{run: tc.mac.run}).grow(t.Context())
			if tc.says == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.says)
			}
			assert.Equal(t, tc.changes, tc.mac.changes)
		})
	}
}

func TestRunCommand(t *testing.T) {
	out, err := runCommand(t.Context(), "yes", "/bin/cat", "-")
	require.NoError(t, err)
	assert.Equal(t, "yes", string(out))
	_, err = runCommand(t.Context(), "", "/bin/sh", "-c", "echo out; echo why >&2; exit 3")
	require.EqualError(t, err, "sh -c: exit status 3: why out")
}
