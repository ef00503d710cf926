package policies

import (
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// newNode returns the Node of a Mac with taints, given as text.
func newNode(vms string, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mac-1", Labels: map[string]string{"kubernetes.io/os": "darwin", "macrack.io/mac": "true"}}}
	if vms != "" {
		n.Status.Capacity = corev1.ResourceList{"macrack.io/macos-vm": resource.MustParse(vms)}
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	for _, taint := range taints {
		key, value, _ := strings.Cut(taint, "=")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

func with(n *corev1.Node, change func(*corev1.Node)) *corev1.Node {
	change(n)
	return n
}

func TestNodes(t *testing.T) {
	plugin := newPlugin(t)
	const unleased, acme, globex, other = "macrack.io/unleased", "macrack.io/tenant=acme", "macrack.io/tenant=globex", "node.kubernetes.io/not-ready"
	linux := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "linux-1", Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	}
	for name, tt := range map[string]struct {
		user        user.Info
		subresource string
		old, new    *corev1.Node
		refused     string
	}{
		"an agent registers":                   {user: agent, new: newNode("2", unleased)},
		"an agent registers, not ready":        {user: agent, new: newNode("2", unleased, other)},
		"without the taint":                    {user: agent, new: newNode("2"), refused: "must be registered as unleased"},
		"as a tenant's":                        {user: agent, new: newNode("2", acme), refused: "must be registered as unleased"},
		"unleased and leased at once":          {user: agent, new: newNode("2", unleased, acme), refused: "must be registered as unleased"},
		"with another effect":                  {user: agent, new: with(newNode("2", unleased), func(n *corev1.Node) { n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule }), refused: "must be registered as unleased"},
		"with three":                           {user: agent, new: newNode("3", unleased), refused: "must be 2"},
		"with one":                             {user: admin, new: newNode("1", unleased), refused: "must be 2"},
		"with three allocatable":               {user: agent, new: with(newNode("2", unleased), func(n *corev1.Node) { n.Status.Allocatable["macrack.io/macos-vm"] = resource.MustParse("3") }), refused: "must be 2"},
		"with 2000m":                           {user: agent, new: newNode("2000m", unleased)},
		"with 2k":                              {user: agent, new: newNode("2k", unleased), refused: "must be 2"},
		"by its label alone, without a taint":  {user: agent, new: newNode(""), refused: "must be registered as unleased"},
		"as a Linux machine":                   {user: agent, new: with(newNode("2", unleased), func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "linux" }), refused: "kubernetes.io/os: darwin"},
		"as a Linux machine, by what it says":  {user: agent, new: linux(), refused: "must register as the Node of a Mac"},
		"as nothing":                           {user: agent, new: with(newNode(""), func(n *corev1.Node) { n.Labels = nil }), refused: "must register as the Node of a Mac"},
		"with a capacity and no label":         {user: agent, new: with(newNode("2", unleased), func(n *corev1.Node) { delete(n.Labels, "macrack.io/mac") }), refused: "must have the label macrack.io/mac"},
		"with a capacity later, and no label":  {user: kubelet, subresource: "status", old: linux(), new: with(newNode("2", unleased), func(n *corev1.Node) { delete(n.Labels, "macrack.io/mac") }), refused: "rule 2"},
		"with something to allocate, no label": {user: agent, new: with(newNode("2", unleased), func(n *corev1.Node) { n.Status.Capacity = nil; delete(n.Labels, "macrack.io/mac") }), refused: "must have the label macrack.io/mac"},
		"a Linux machine registers":            {user: kubelet, new: linux()},
		"a Linux machine":                      {user: admin, new: linux()},
		"a Linux machine, changed":             {user: admin, old: linux(), new: with(linux(), func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"a Linux machine that becomes a Mac":   {user: agent, subresource: "status", old: linux(), new: with(linux(), func(n *corev1.Node) { n.Status.Capacity = newNode("2").Status.Capacity }), refused: "must always have the taint"},
		"raised":                               {user: admin, subresource: "status", old: newNode("2", acme), new: newNode("3", acme), refused: "must be 2"},
		"a heartbeat":                          {user: agent, subresource: "status", old: newNode("2", acme), new: newNode("2", acme)},
		"leased, first step":                   {user: controllers, old: newNode("2", unleased), new: newNode("2", unleased, acme)},
		"leased, second step":                  {user: controllers, old: newNode("2", unleased, acme), new: newNode("2", acme)},
		"released, first step":                 {user: controllers, old: newNode("2", acme), new: newNode("2", acme, unleased)},
		"released, second step":                {user: controllers, old: newNode("2", acme, unleased), new: newNode("2", unleased)},
		"the controllers, no taint":            {user: controllers, old: newNode("2", acme), new: newNode("2"), refused: "must always have the taint"},
		"the controllers, two tenants":         {user: controllers, old: newNode("2", acme), new: newNode("2", acme, globex), refused: "must have only one tenant"},
		"an administrator takes the taint":     {user: admin, old: newNode("2", unleased), new: newNode("2"), refused: "only MacRack's controllers"},
		"an administrator gives it away":       {user: admin, old: newNode("2", unleased), new: newNode("2", acme), refused: "only MacRack's controllers"},
		"an administrator adds a tenant":       {user: admin, old: newNode("2", acme), new: newNode("2", acme, globex), refused: "only MacRack's controllers"},
		"an agent gives itself away":           {user: agent, old: newNode("2", unleased), new: newNode("2", globex), refused: "only MacRack's controllers"},
		"an administrator weakens it":          {user: admin, old: newNode("2", acme), new: with(newNode("2", acme), func(n *corev1.Node) { n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule }), refused: "only MacRack's controllers"},
		"the node controller":                  {user: &user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}, old: newNode("2", acme), new: newNode("2", acme, other)},
		"cordoned":                             {user: admin, old: newNode("2", acme), new: with(newNode("2", acme), func(n *corev1.Node) { n.Spec.Unschedulable = true })},
		"made a Linux machine":                 {user: admin, old: newNode("2", acme), new: with(newNode("2", acme), func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "linux" }), refused: "kubernetes.io/os: darwin"},
		"without a label for its system":       {user: admin, old: newNode("2", acme), new: with(newNode("2", acme), func(n *corev1.Node) { delete(n.Labels, "kubernetes.io/os") }), refused: "kubernetes.io/os: darwin"},
		"made no Mac":                          {user: admin, old: newNode("2", acme), new: with(newNode("2", acme), func(n *corev1.Node) { delete(n.Labels, "macrack.io/mac") }), refused: "cannot be removed; delete the Node"},
		"without labels":                       {user: admin, old: newNode("2", acme), new: with(newNode("2", acme), func(n *corev1.Node) { n.Labels = nil }), refused: "rule 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{
				user: tt.user, operation: admission.Create, subresource: tt.subresource, new: tt.new,
				resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node"),
			}
			if tt.old != nil {
				r.operation, r.old = admission.Update, tt.old
			}
			check(t, validate(t, plugin, r), tt.refused)
		})
	}
}

func TestNodesAreDeleted(t *testing.T) {
	plugin := newPlugin(t)
	mac := newNode("2", "macrack.io/unleased")
	linux := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "linux-1"}}
	const byOthers = "only users who may delete the MacNode"
	for _, tt := range []struct {
		user    user.Info
		node    *corev1.Node
		refused string
	}{
		{admin, mac, ""}, {operator, mac, byOthers}, {cleaner, mac, byOthers}, {agent, mac, byOthers},
		{operator, linux, ""}, {cleaner, linux, ""},
	} {
		check(t, validate(t, plugin, request{
			user: tt.user, operation: admission.Delete, old: tt.node,
			resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node"),
		}), tt.refused)
	}
}

func TestRetired(t *testing.T) {
	plugin := newPlugin(t)
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "kube-node-lease"}}
	node := newNode("2", "macrack.io/unleased")
	for _, r := range []request{
		{operation: admission.Create, new: csr, resource: certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), kind: certificatesv1.SchemeGroupVersion.WithKind("CertificateSigningRequest")},
		{operation: admission.Create, new: node, resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node")},
		{operation: admission.Update, subresource: "status", new: node, old: node, resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node")},
		{operation: admission.Update, namespace: "kube-node-lease", new: lease, old: lease, resource: coordinationv1.SchemeGroupVersion.WithResource("leases"), kind: coordinationv1.SchemeGroupVersion.WithKind("Lease")},
		{operation: admission.Delete, namespace: "acme", old: newPod("acme", func(*corev1.PodSpec) {}), resource: corev1.SchemeGroupVersion.WithResource("pods"), kind: corev1.SchemeGroupVersion.WithKind("Pod")},
	} {
		for who, refused := range map[user.Info]string{retired: "is retired", agent: "", admin: ""} {
			r.user = who
			check(t, validate(t, plugin, r), refused)
		}
	}
}

func TestDeviceClasses(t *testing.T) {
	plugin := newPlugin(t)
	for name, refused := range map[string]string{"macrack.io/macos-vm": "belong to the Nodes of Macs", "example.com/gpu": "", "": ""} {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
		if name != "" {
			class.Spec.ExtendedResourceName = &name
		}
		check(t, validate(t, plugin, request{
			user: admin, operation: admission.Create, new: class,
			resource: resourcev1.SchemeGroupVersion.WithResource("deviceclasses"), kind: resourcev1.SchemeGroupVersion.WithKind("DeviceClass"),
		}), refused)
	}
}
