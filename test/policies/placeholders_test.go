package policies

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"
)

var (
	collector  = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:generic-garbage-collector"}
	namespaces = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:namespace-controller"}
	podGC      = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:pod-garbage-collector"}
	taints     = &user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}
	otherAgent = &user.DefaultInfo{Name: "system:node:mac-2", Groups: []string{"system:nodes"}}
)

func TestMetadataOfPlaceholders(t *testing.T) {
	plugin := newPlugin(t)
	const set, stay, owner, own, finalizers = "only MacRack's controllers set them", "of a placeholder pod cannot be removed", "is its MacOSInstance and cannot be changed", "owns only its placeholder pod", "cannot have finalizers"
	meta := func(change func(*metav1.ObjectMeta)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.ObjectMeta) }
	}
	placeholder := func(*corev1.Pod) {}
	for name, tt := range map[string]struct {
		user        user.Info // tenant
		subresource string
		old, new    func(*corev1.Pod) // of a placeholder
		refused     string
	}{
		"unchanged":                       {new: placeholder},
		"a label of the tenant":           {new: meta(func(m *metav1.ObjectMeta) { m.Labels["team"] = "ios" })},
		"an annotation of the tenant":     {new: meta(func(m *metav1.ObjectMeta) { m.Annotations["note"] = "x" })},
		"a label of the tenant removed":   {old: meta(func(m *metav1.ObjectMeta) { m.Labels["team"] = "ios" }), new: placeholder},
		"the label changed":               {new: meta(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"] = "y" }), refused: set},
		"the label changed by an admin":   {user: admin, new: meta(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"] = "y" }), refused: set},
		"the label changed by its Mac":    {user: agent, subresource: "status", new: meta(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/instance"] = "y" }), refused: set},
		"the label changed by a status":   {user: admin, subresource: "status", new: meta(func(m *metav1.ObjectMeta) { m.Labels = nil }), refused: stay},
		"the label removed":               {new: meta(func(m *metav1.ObjectMeta) { delete(m.Labels, "macrack.io/instance") }), refused: stay},
		"all labels removed":              {new: meta(func(m *metav1.ObjectMeta) { m.Labels = nil }), refused: stay},
		"the annotation changed":          {new: meta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/instance-uid"] = "y" }), refused: set},
		"the annotation removed":          {new: meta(func(m *metav1.ObjectMeta) { m.Annotations = nil }), refused: stay},
		"another label with the prefix":   {new: meta(func(m *metav1.ObjectMeta) { m.Labels["macrack.io/other"] = "y" }), refused: set},
		"marked as in maintenance":        {new: meta(func(m *metav1.ObjectMeta) { m.Annotations["macrack.io/maintenance"] = "true" }), refused: set},
		"owners cleared":                  {new: meta(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), refused: owner},
		"owners cleared by an admin":      {user: admin, new: meta(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), refused: owner},
		"owners cleared by the collector": {user: collector, new: meta(func(m *metav1.ObjectMeta) { m.OwnerReferences = nil })},
		"an additional owner": {new: meta(func(m *metav1.ObjectMeta) {
			m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{Kind: "Job", Name: "a"})
		}), refused: owner},
		"adopted by a ReplicaSet": {user: replicas, new: meta(func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "a", UID: "a", Controller: ptr.To(true)}}
		}), refused: owner},
		"a finalizer":                 {new: meta(func(m *metav1.ObjectMeta) { m.Finalizers = []string{"a.b/c"} }), refused: finalizers},
		"a finalizer removed":         {old: meta(func(m *metav1.ObjectMeta) { m.Finalizers = []string{"a.b/c"} }), new: placeholder},
		"an existing finalizer":       {old: meta(func(m *metav1.ObjectMeta) { m.Finalizers = []string{"a.b/c"} }), new: meta(func(m *metav1.ObjectMeta) { m.Finalizers = []string{"a.b/c"} })},
		"replaced by a bare manifest": {new: meta(func(m *metav1.ObjectMeta) { *m = metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace} }), refused: stay},
		"a status":                    {user: agent, subresource: "status", new: placeholder},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.old == nil {
				tt.old = placeholder
			}
			if tt.user == nil {
				tt.user = tenant
			}
			checkRefused(t, validate(t, plugin, podRequest(tt.user, admission.Update, tt.subresource, newPlaceholder("acme", tt.new), newPlaceholder("acme", tt.old))), tt.refused)
		})
	}
	plain := func(change func(*metav1.ObjectMeta)) *corev1.Pod {
		pod := newPod("acme", func(*corev1.PodSpec) {})
		change(&pod.ObjectMeta)
		return pod
	}
	label := plain(func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"macrack.io/instance": "x"} })
	annotation := plain(func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"macrack.io/instance-uid": "uid"} })
	owned := plain(func(m *metav1.ObjectMeta) { m.OwnerReferences = newPlaceholder("acme").OwnerReferences })
	free := plain(func(m *metav1.ObjectMeta) {
		m.Labels = map[string]string{"app.kubernetes.io/part-of": "macrack", "notmacrack.io/x": "y"}
	})
	for _, tt := range []struct {
		name    string
		request request
		refused string
	}{
		{"another's pod with the label", podRequest(tenant, admission.Create, "", label, nil), set},
		{"another's pod with the annotation", podRequest(admin, admission.Create, "", annotation, nil), set},
		{"another's pod of the instance", podRequest(tenant, admission.Create, "", owned, nil), own},
		{"another's pod, later with the label", podRequest(tenant, admission.Update, "", label, free), set},
		{"another's pod, later of the instance", podRequest(tenant, admission.Update, "", owned, free), own},
		{"another's pod from before", podRequest(tenant, admission.Update, "", owned, owned), ""},
		{"another's pod, label removed", podRequest(tenant, admission.Update, "", free, label), ""},
		{"another's pod", podRequest(tenant, admission.Create, "", free, nil), ""},
	} {
		t.Run(tt.name, func(t *testing.T) { checkRefused(t, validate(t, plugin, tt.request), tt.refused) })
	}
}

func TestDeletionsOfPlaceholders(t *testing.T) {
	plugin := newPlugin(t)
	const stays = "a placeholder pod cannot be deleted before its MacOSInstance"
	running := func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "mac-1", corev1.PodRunning }
	pending := func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }
	in := func(phase corev1.PodPhase) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "mac-1", phase }
	}
	for name, tt := range map[string]struct {
		user    user.Info
		pod     func(*corev1.Pod)
		refused string
	}{
		"by its tenant":                    {tenant, running, stays},
		"by its tenant, before it runs":    {tenant, pending, stays},
		"by an administrator":              {admin, running, stays},
		"by the scheduler's preemption":    {scheduler, running, stays},
		"by a taint":                       {taints, running, stays},
		"after the end of its Node":        {podGC, running, stays},
		"by a ReplicaSet":                  {replicas, running, stays},
		"by another Mac":                   {otherAgent, running, stays},
		"by the controllers":               {controllers, running, ""},
		"by its Mac":                       {agent, running, ""},
		"with its instance":                {collector, running, ""},
		"with an owner that never existed": {collector, func(p *corev1.Pod) { running(p); p.OwnerReferences[0].Kind = "ReplicaSet" }, stays},
		"with its namespace":               {namespaces, running, ""},
		"once it has stopped":              {tenant, in(corev1.PodSucceeded), ""},
		"once it has failed":               {podGC, in(corev1.PodFailed), ""},
		"again, while it is being deleted": {podGC, func(p *corev1.Pod) { running(p); p.DeletionTimestamp = &metav1.Time{} }, ""},
		"in maintenance":                   {admin, func(p *corev1.Pod) { running(p); p.Annotations["macrack.io/maintenance"] = "true" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			checkRefused(t, validate(t, plugin, podRequest(tt.user, admission.Delete, "", nil, newPlaceholder("acme", tt.pod))), tt.refused)
		})
	}
	for _, who := range []user.Info{tenant, admin, scheduler, podGC, taints} {
		checkRefused(t, validate(t, plugin, podRequest(who, admission.Delete, "", nil, newPod("acme", func(*corev1.PodSpec) {}))), "")
		checkRefused(t, validate(t, plugin, podRequest(who, admission.Delete, "", nil, nil)), "")
	}
}

// The owner of a placeholder pod cannot remove its protection from evictions.
func TestBudgetsOfPlaceholders(t *testing.T) {
	plugin := newPlugin(t)
	disruption := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:disruption-controller"}
	weak := newBudget(func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = ptr.To(intstr.FromInt32(0)) })
	orphan := newBudget(func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences = nil })
	const stays = "stays while the lease does"
	for name, tt := range map[string]struct {
		user        user.Info
		operation   admission.Operation
		subresource string
		new, old    *policyv1.PodDisruptionBudget
		refused     string
	}{
		"deleted by the tenant":                    {tenant, admission.Delete, "", nil, newBudget(), stays},
		"an instance's, deleted by the tenant":     {tenant, admission.Delete, "", nil, newBudget(ofInstance), stays},
		"weakened by the tenant":                   {tenant, admission.Update, "", weak, newBudget(), stays},
		"taken from its owner by the tenant":       {tenant, admission.Update, "", orphan, newBudget(), stays},
		"another count by the tenant":              {tenant, admission.Update, "status", newBudget(), newBudget(), stays},
		"deleted by a Mac":                         {agent, admission.Delete, "", nil, newBudget(), stays},
		"deleted by the controllers":               {controllers, admission.Delete, "", nil, newBudget(), ""},
		"deleted by the garbage collector":         {collector, admission.Delete, "", nil, newBudget(), ""},
		"deleted with its namespace":               {namespaces, admission.Delete, "", nil, newBudget(), ""},
		"deleted by an admin":                      {admin, admission.Delete, "", nil, newBudget(), ""},
		"counted by the disruption controller":     {disruption, admission.Update, "status", newBudget(), newBudget(), ""},
		"weakened by the disruption controller":    {disruption, admission.Update, "", weak, newBudget(), stays},
		"the tenant's own, deleted":                {tenant, admission.Delete, "", nil, orphan, ""},
		"the tenant's own, changed":                {tenant, admission.Update, "", orphan, orphan, ""},
		"a collection, of which there are objects": {tenant, admission.Delete, "", nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := budgetRequest(tt.user, tt.operation, tt.new, tt.old)
			r.subresource = tt.subresource
			checkRefused(t, validate(t, plugin, r), tt.refused)
		})
	}
}
