package validation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/apis/scalar"
)

var (
	now       = metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	sha       = "sha256:" + strings.Repeat("ab", 32)
	condition = metav1.Condition{Type: rack.MacNodeReady, Status: metav1.ConditionTrue, Reason: "Heartbeat", LastTransitionTime: now}
)

func validNode() *rack.MacNode {
	return &rack.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: "mac-a1", ResourceVersion: "1"},
		Spec:       rack.MacNodeSpec{SerialNumber: "C07DR00AQ6NV", ClassName: "m4-pro", Location: rack.MacNodeLocation{Site: "fra1", Rack: "7", Shelf: "3"}},
		Status: rack.MacNodeStatus{
			Phase:      rack.MacNodeLeased,
			LeaseRef:   &rack.LeaseReference{Namespace: "acme", Name: "ci", UID: "u1"},
			RunningVMs: 2,
			BootID:     "b1",
			Quarantine: &rack.Quarantine{Reason: rack.ReasonScrubFailed, Since: now},
			Scrub:      &rack.ScrubReport{LeaseUID: "u0", FinishedAt: now, Removed: []string{"slot 0"}},
			Hardware:   &rack.MacNodeHardware{ModelIdentifier: "Mac16,11", SerialNumber: "C07DR00AQ6NV", CPU: scalar.MustParse("12"), FreeStorage: scalar.MustParse("100Gi")},
			Images:     []rack.CachedImage{{Name: "macos-26", Digest: sha, SizeBytes: 1}},
			Conditions: []metav1.Condition{condition},
		},
	}
}

func TestValidateMacNode(t *testing.T) {
	tests := map[string]struct {
		change func(*rack.MacNode)
		want   []string
	}{
		"valid":         {func(*rack.MacNode) {}, nil},
		"no serial":     {func(n *rack.MacNode) { n.Spec.SerialNumber = "" }, []string{"spec.serialNumber: Required"}},
		"serial":        {func(n *rack.MacNode) { n.Spec.SerialNumber = "C07-DR00" }, []string{"spec.serialNumber: Invalid"}},
		"no class":      {func(n *rack.MacNode) { n.Spec.ClassName = "" }, []string{"spec.className: Required"}},
		"long location": {func(n *rack.MacNode) { n.Spec.Location.Rack = strings.Repeat("r", 64) }, []string{"spec.location.rack: Too long"}},
		"escape in it":  {func(n *rack.MacNode) { n.Spec.Location.Site = "\x1b[31m" }, []string{"spec.location.site: Invalid"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := validNode()
			tt.change(node)
			checktest.Errors(t, tt.want, ValidateMacNode(node))
		})
	}
}

func TestValidateMacNodeUpdate(t *testing.T) {
	node := validNode()
	node.Spec.Maintenance = true
	node.Spec.ClassName = "m4"
	node.Spec.Location.Shelf = "4"
	checktest.Errors(t, nil, ValidateMacNodeUpdate(node, validNode()))
	node.Spec.SerialNumber = "C07DR00AQ6NW"
	checktest.Errors(t, []string{"spec.serialNumber: Forbidden: field is immutable; another chassis is another MacNode"}, ValidateMacNodeUpdate(node, validNode()))
}

func TestValidateMacNodeStatusUpdate(t *testing.T) {
	tests := map[string]struct {
		change func(*rack.MacNodeStatus)
		want   []string
	}{
		"valid":                 {func(*rack.MacNodeStatus) {}, nil},
		"nothing known":         {func(s *rack.MacNodeStatus) { *s = rack.MacNodeStatus{Phase: rack.MacNodePending} }, nil},
		"phase":                 {func(s *rack.MacNodeStatus) { s.Phase = "Free" }, []string{"status.phase: Unsupported"}},
		"three VMs":             {func(s *rack.MacNodeStatus) { s.RunningVMs = 3 }, []string{"status.runningVMs: Invalid value: 3: must be 0 to 2"}},
		"negative VMs":          {func(s *rack.MacNodeStatus) { s.RunningVMs = -1 }, []string{"status.runningVMs: Invalid"}},
		"no UID":                {func(s *rack.MacNodeStatus) { s.LeaseRef.UID = "" }, []string{"status.leaseRef.uid: Required"}},
		"no tenant":             {func(s *rack.MacNodeStatus) { s.LeaseRef.Namespace = "" }, []string{"status.leaseRef.namespace: Required"}},
		"no reason":             {func(s *rack.MacNodeStatus) { s.Quarantine.Reason = "" }, []string{"status.quarantine.reason: Required"}},
		"no time":               {func(s *rack.MacNodeStatus) { s.Quarantine.Since = metav1.Time{} }, []string{"status.quarantine.since: Required"}},
		"scrub without a lease": {func(s *rack.MacNodeStatus) { s.Scrub.LeaseUID = "" }, []string{"status.scrub.leaseUID: Required"}},
		"scrub unfinished":      {func(s *rack.MacNodeStatus) { s.Scrub.FinishedAt = metav1.Time{} }, []string{"status.scrub.finishedAt: Required"}},
		"65 removed":            {func(s *rack.MacNodeStatus) { s.Scrub.Removed = make([]string, 65) }, []string{"status.scrub.removed: Too many"}},
		"long remaining":        {func(s *rack.MacNodeStatus) { s.Scrub.Remaining = []string{strings.Repeat("r", 4097)} }, []string{"status.scrub.remaining[0]: Too long"}},
		"odd name removed":      {func(s *rack.MacNodeStatus) { s.Scrub.Removed = []string{"a\nb\x1b"} }, nil},
		"negative hardware":     {func(s *rack.MacNodeStatus) { s.Hardware.CPU = scalar.MustParse("-1") }, []string{"status.hardware.cpu: Invalid"}},
		"image twice":           {func(s *rack.MacNodeStatus) { s.Images = append(s.Images, s.Images[0]) }, []string{"status.images[1].name: Duplicate"}},
		"image's digest":        {func(s *rack.MacNodeStatus) { s.Images[0].Digest = "md5:1" }, []string{"status.images[0].digest: Invalid"}},
		"no digest yet":         {func(s *rack.MacNodeStatus) { s.Images[0].Digest = "" }, nil},
		"negative size":         {func(s *rack.MacNodeStatus) { s.Images[0].SizeBytes = -1 }, []string{"status.images[0].sizeBytes: Invalid"}},
		"check twice": {func(s *rack.MacNodeStatus) {
			s.ImageChecks = []rack.ImageCheck{{Name: "a", Reason: "x"}, {Name: "a", Reason: "x"}}
		}, []string{"status.imageChecks[1].name: Duplicate"}},
		"check of nothing": {func(s *rack.MacNodeStatus) { s.ImageChecks = []rack.ImageCheck{{Reason: "x"}} }, []string{"status.imageChecks[0].name: Required"}},
		"check without":    {func(s *rack.MacNodeStatus) { s.ImageChecks = []rack.ImageCheck{{Name: "a"}} }, []string{"status.imageChecks[0].reason: Required"}},
		"check of the past": {func(s *rack.MacNodeStatus) {
			s.ImageChecks = []rack.ImageCheck{{Name: "a", Reason: "x", ObservedGeneration: -1}}
		}, []string{"status.imageChecks[0].observedGeneration: Invalid"}},
		"33 checks": {func(s *rack.MacNodeStatus) { s.ImageChecks = make([]rack.ImageCheck, 33) }, []string{"status.imageChecks: Too many"}},
		"a check": {func(s *rack.MacNodeStatus) {
			s.ImageChecks = []rack.ImageCheck{{Name: "a", Reason: "Verified", ObservedGeneration: 1}}
		}, nil},
		"257 images":         {func(s *rack.MacNodeStatus) { s.Images = make([]rack.CachedImage, 257) }, []string{"status.images: Too many"}},
		"condition twice":    {func(s *rack.MacNodeStatus) { s.Conditions = append(s.Conditions, condition) }, []string{"status.conditions[1]: Duplicate"}},
		"condition's status": {func(s *rack.MacNodeStatus) { s.Conditions[0].Status = "Yes" }, []string{"status.conditions[0].status: Unsupported"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := validNode()
			tt.change(&node.Status)
			checktest.Errors(t, tt.want, ValidateMacNodeStatusUpdate(node, validNode()))
		})
	}

	node := validNode()
	node.Status.Images = nil
	for i := range 256 {
		node.Status.Images = append(node.Status.Images, rack.CachedImage{Name: fmt.Sprintf("image-%d", i)})
	}
	checktest.Errors(t, nil, ValidateMacNodeStatusUpdate(node, validNode()))
}
