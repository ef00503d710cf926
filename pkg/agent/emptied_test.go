//go:build !darwin

package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

// A cache in a directory that exceeds its limit is emptied before its next use. The tenant sees it
// in an Event.
func TestEmptiedCache(t *testing.T) {
	r := newRack(t)
	r.changeMacNode(func(m *rackv1alpha1.MacNode) {
		m.Status.Caches = []rackv1alpha1.LeaseCache{{Name: "gems", SizeLimit: scalar.MustParse("64Mi")}}
	})
	dir := filepath.Join(r.dir, "caches", "uid-lease-1", "gems", "data")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large"), make([]byte, 65<<20), 0o600))
	i := newInstance("a")
	i.Spec.Caches = []instancev1alpha1.InstanceCache{{Name: "gems"}}
	r.create(i, newPod(i))
	r.waitPhase("a", instancev1alpha1.MacOSInstanceRunning)
	assert.NoFileExists(t, filepath.Join(dir, "large"))
	var message string
	r.eventually(func() bool {
		list, err := r.kube.CoreV1().Events(tenant).List(r.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, event := range list.Items {
			if event.Reason == "CacheEmptied" && event.InvolvedObject.UID == i.UID {
				message = event.Message
			}
		}
		return message != ""
	}, func() any { return nil })
	assert.Regexp(t, `^Cache gems was emptied: it had 68\d{6} bytes, and its limit is 67108864 bytes$`, message)
}
