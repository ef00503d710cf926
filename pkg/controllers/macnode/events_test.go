package macnode

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"macrack.io/macrack/pkg/apiclient"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

func TestDescribe(t *testing.T) {
	mac := func(uid types.UID, quarantine *rackv1alpha1.Quarantine) *rackv1alpha1.MacNode {
		return &rackv1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", UID: uid}, Status: rackv1alpha1.MacNodeStatus{Quarantine: quarantine}}
	}
	stuck := &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel refuses"}
	unknown := &rackv1alpha1.Quarantine{Reason: "UnknownInstance", Message: "a VM has no instance"}
	longer := &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: "the kernel still refuses"}
	long := &rackv1alpha1.Quarantine{Reason: "KernelQuotaStuck", Message: strings.Repeat("x", 2000)}
	for name, tt := range map[string]struct {
		before, after *rackv1alpha1.MacNode
		want          [3]string
	}{
		"a new Mac":                  {nil, mac("1", stuck), [3]string{}},
		"a deleted Mac":              {mac("1", stuck), nil, [3]string{}},
		"a new Mac of the same name": {mac("1", nil), mac("2", stuck), [3]string{}},
		"a healthy Mac":              {mac("1", nil), mac("1", nil), [3]string{}},
		"a quarantine begins":        {mac("1", nil), mac("1", stuck), [3]string{"Warning", "Quarantined", "no instance starts on the Mac (KernelQuotaStuck): the kernel refuses"}},
		"a long message":             {mac("1", nil), mac("1", long), [3]string{"Warning", "Quarantined", apiclient.Message("no instance starts on the Mac (KernelQuotaStuck): " + long.Message)}},
		"a quarantine continues":     {mac("1", stuck), mac("1", longer), [3]string{}},
		"another cause":              {mac("1", stuck), mac("1", unknown), [3]string{"Warning", "Quarantined", "no instance starts on the Mac (UnknownInstance): a VM has no instance"}},
		"a quarantine ends":          {mac("1", stuck), mac("1", nil), [3]string{"Normal", "Recovered", "quarantine ended (KernelQuotaStuck)"}},
	} {
		t.Run(name, func(t *testing.T) {
			eventType, reason, message := describe(tt.before, tt.after)
			assert.Equal(t, tt.want, [3]string{eventType, reason, message})
		})
	}
}
