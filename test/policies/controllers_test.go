package policies

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/controllers/macosinstance"
)

// newPlaceholder returns the pod that the controllers create, with a change.
func newPlaceholder(namespace string, changes ...func(*corev1.Pod)) *corev1.Pod {
	instance := &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x", UID: "uid"},
		Status:     instancev1alpha1.MacOSInstanceStatus{NodeName: "mac-1", PodName: "x-vm"},
	}
	image := &imagev1alpha1.MacOSImage{Spec: imagev1alpha1.MacOSImageSpec{PullSecretRef: &imagev1alpha1.SecretReference{Namespace: namespace, Name: "robot"}}}
	pod := macosinstance.Placeholder(instance, image)
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// podRequest is a request in namespace acme unless a pod has another namespace.
func podRequest(who user.Info, operation admission.Operation, subresource string, new, old *corev1.Pod) request {
	r := request{
		user: who, operation: operation, subresource: subresource, namespace: "acme",
		resource: corev1.SchemeGroupVersion.WithResource("pods"), kind: corev1.SchemeGroupVersion.WithKind("Pod"),
	}
	if new != nil {
		r.new, r.namespace = new, new.Namespace
	}
	if old != nil {
		r.old, r.namespace = old, old.Namespace
	}
	return r
}

// checkRefused is check for refusals by none of the three rules.
func checkRefused(t *testing.T, err error, refused string) {
	t.Helper()
	if refused == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, refused)
}

func TestControllersCreatePlaceholders(t *testing.T) {
	plugin := newPlugin(t)
	const shape, secrets, privileges, owner, placed, slot, taints = "one container of the image", "no volumes", "no privileges", "with one owner, a MacOSInstance", "the scheduler binds the pod", "rule 1", "rule 2"
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	spec := func(change func(*corev1.PodSpec)) func(*corev1.Pod) { return func(p *corev1.Pod) { change(&p.Spec) } }
	limited := func(name corev1.ResourceName, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			list := p.Spec.Containers[0].Resources.Limits.DeepCopy()
			list[name] = resource.MustParse(value)
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		}
	}
	for name, tt := range map[string]struct {
		namespace string // acme
		change    func(*corev1.Pod)
		refused   string
	}{
		"as the controllers create it":  {change: func(*corev1.Pod) {}},
		"in a namespace with a default": {change: limited("cpu", "1")},
		"with the defaults of admission": {change: spec(func(s *corev1.PodSpec) {
			s.ServiceAccountName, s.DeprecatedServiceAccount, s.SchedulerName, s.Priority = "default", "default", "default-scheduler", ptr.To[int32](0)
			s.PreemptionPolicy, s.DNSPolicy, s.PriorityClassName = ptr.To(corev1.PreemptLowerPriority), corev1.DNSClusterFirst, "ordinary"
			s.Containers[0].ImagePullPolicy, s.Containers[0].TerminationMessagePath = corev1.PullIfNotPresent, "/dev/termination-log"
			s.NodeSelector = map[string]string{"pool": "macs"}
		})},

		"of the system":     {namespace: "kube-system", change: func(*corev1.Pod) {}, refused: "system's namespaces"},
		"of heartbeats":     {namespace: "kube-node-lease", change: func(*corev1.Pod) {}, refused: "system's namespaces"},
		"of MacRack":        {namespace: "macrack-system", change: func(*corev1.Pod) {}, refused: "system's namespaces"},
		"of image Secrets":  {namespace: "macrack-images", change: func(*corev1.Pod) {}, refused: "system's namespaces"},
		"without an owner":  {change: func(p *corev1.Pod) { p.OwnerReferences = nil }, refused: owner},
		"of a ReplicaSet":   {change: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }, refused: owner},
		"of another group":  {change: func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "apps/v1" }, refused: owner},
		"of no controller":  {change: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, refused: owner},
		"of two":            {change: func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) }, refused: owner},
		"of another's name": {change: func(p *corev1.Pod) { p.Labels["macrack.io/instance"] = "y" }, refused: owner},
		"of another's UID":  {change: func(p *corev1.Pod) { p.Annotations["macrack.io/instance-uid"] = "y" }, refused: owner},
		"without labels":    {change: func(p *corev1.Pod) { p.Labels = nil }, refused: owner},
		"without UID":       {change: func(p *corev1.Pod) { p.Annotations = nil }, refused: owner},

		"with another image": {change: container(func(c *corev1.Container) { c.Image = "evil" }), refused: shape},
		"with a command":     {change: container(func(c *corev1.Container) { c.Command = []string{"sh"} }), refused: shape},
		"with arguments":     {change: container(func(c *corev1.Container) { c.Args = []string{"sh"} }), refused: shape},
		"with a variable":    {change: container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "A", Value: "b"}} }), refused: shape},
		"with a field": {change: container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{}}}}
		}), refused: shape},
		"with its environment": {change: container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{
				{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}},
				{Name: "B", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}}},
			}
			c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
		})},
		"with a port":             {change: container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{HostPort: 22}} }), refused: shape},
		"with a mount":            {change: container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{}} }), refused: shape},
		"with a device":           {change: container(func(c *corev1.Container) { c.VolumeDevices = []corev1.VolumeDevice{{}} }), refused: shape},
		"with a hook":             {change: container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), refused: shape},
		"with a probe":            {change: container(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }), refused: shape},
		"with a second container": {change: spec(func(s *corev1.PodSpec) { s.Containers = append(s.Containers, corev1.Container{Name: "b"}) }), refused: shape},
		"with an init container":  {change: spec(func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Name: "b"}} }), refused: shape},
		"with an ephemeral":       {change: spec(func(s *corev1.PodSpec) { s.EphemeralContainers = []corev1.EphemeralContainer{{}} }), refused: shape},
		"for two":                 {change: limited("macrack.io/macos-vm", "2"), refused: slot},
		"for none":                {change: limited("macrack.io/macos-vm", "0"), refused: slot},
		"with a GPU":              {change: limited("example.com/gpu", "1"), refused: slot},
		"without resources":       {change: container(func(c *corev1.Container) { c.Resources = corev1.ResourceRequirements{} }), refused: slot},
		"with no limit":           {change: container(func(c *corev1.Container) { c.Resources.Limits = nil }), refused: slot},
		"with claims":             {change: container(func(c *corev1.Container) { c.Resources.Claims = []corev1.ResourceClaim{{Name: "a"}} }), refused: slot},
		"with the pod's claim":    {change: spec(func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{{Name: "a"}} }), refused: slot},
		"with resources":          {change: spec(func(s *corev1.PodSpec) { s.Resources = &corev1.ResourceRequirements{} }), refused: slot},

		"with a volume":     {change: spec(func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "a"}} }), refused: secrets},
		"with a token":      {change: spec(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = ptr.To(true) }), refused: secrets},
		"with the default":  {change: spec(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = nil }), refused: secrets},
		"with an account":   {change: spec(func(s *corev1.PodSpec) { s.ServiceAccountName = "clusterrole-aggregation-controller" }), refused: secrets},
		"with host aliases": {change: spec(func(s *corev1.PodSpec) { s.HostAliases = []corev1.HostAlias{{IP: "1.1.1.1"}} }), refused: secrets},

		"on the host's network": {change: spec(func(s *corev1.PodSpec) { s.HostNetwork = true }), refused: privileges},
		"among its processes":   {change: spec(func(s *corev1.PodSpec) { s.HostPID = true }), refused: privileges},
		"in its IPC":            {change: spec(func(s *corev1.PodSpec) { s.HostIPC = true }), refused: privileges},
		"sharing processes":     {change: spec(func(s *corev1.PodSpec) { s.ShareProcessNamespace = ptr.To(true) }), refused: privileges},
		"as root":               {change: spec(func(s *corev1.PodSpec) { s.SecurityContext.RunAsUser = ptr.To[int64](0) }), refused: privileges},
		"as any user":           {change: spec(func(s *corev1.PodSpec) { s.SecurityContext = nil }), refused: privileges},
		"with sysctls":          {change: spec(func(s *corev1.PodSpec) { s.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "a"}} }), refused: privileges},
		"privileged":            {change: container(func(c *corev1.Container) { c.SecurityContext.Privileged = ptr.To(true) }), refused: privileges},
		"escalating":            {change: container(func(c *corev1.Container) { c.SecurityContext.AllowPrivilegeEscalation = nil }), refused: privileges},
		"as root, container":    {change: container(func(c *corev1.Container) { c.SecurityContext.RunAsUser = ptr.To[int64](0) }), refused: privileges},
		"allowing root":         {change: container(func(c *corev1.Container) { c.SecurityContext.RunAsNonRoot = ptr.To(false) }), refused: privileges},
		"with a capability":     {change: container(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"} }), refused: privileges},
		"without its context":   {change: container(func(c *corev1.Container) { c.SecurityContext = nil }), refused: privileges},
		"tolerating control": {change: spec(func(s *corev1.PodSpec) {
			s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: "gpu", Operator: corev1.TolerationOpExists})
		}), refused: taints},
		"tolerating nothing": {change: spec(func(s *corev1.PodSpec) { s.Tolerations = nil }), refused: taints},
		"tolerating every taint": {change: spec(func(s *corev1.PodSpec) {
			s.Tolerations = append(s.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		}), refused: taints},
		"tolerating another's": {change: spec(func(s *corev1.PodSpec) { s.Tolerations[0].Value = "globex" }), refused: taints},
		"anywhere":             {change: spec(func(s *corev1.PodSpec) { s.Affinity = nil }), refused: placed},
		"on two Nodes": {change: spec(func(s *corev1.PodSpec) {
			s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values = []string{"a", "b"}
		}), refused: placed},
		"on all but one Node": {change: spec(func(s *corev1.PodSpec) {
			s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		}), refused: placed},
		"on Nodes of either": {change: spec(func(s *corev1.PodSpec) {
			r := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			r.NodeSelectorTerms = append(r.NodeSelectorTerms, r.NodeSelectorTerms[0])
		}), refused: placed},
		"past the scheduler":      {change: spec(func(s *corev1.PodSpec) { s.NodeName = "linux-1" }), refused: placed},
		"before the system's own": {change: spec(func(s *corev1.PodSpec) { s.PriorityClassName = "system-node-critical" }), refused: placed},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.namespace == "" {
				tt.namespace = "acme"
			}
			checkRefused(t, validate(t, plugin, podRequest(controllers, admission.Create, "", newPlaceholder(tt.namespace, tt.change), nil)), tt.refused)
		})
	}
}

func TestControllersAndPodsOfOthers(t *testing.T) {
	plugin := newPlugin(t)
	plain := newPod("kube-system", func(*corev1.PodSpec) {})
	ours := newPlaceholder("acme")
	unlabelled := newPod("acme", func(*corev1.PodSpec) {})
	labelled := unlabelled.DeepCopy()
	labelled.Labels, labelled.Annotations, labelled.OwnerReferences = ours.Labels, ours.Annotations, ours.OwnerReferences
	for name, tt := range map[string]struct {
		request request
		refused string
	}{
		"a pod without an owner":       {podRequest(controllers, admission.Create, "", newPod("acme", func(*corev1.PodSpec) {}), nil), "placeholder pods"},
		"an eviction of the system's":  {podRequest(controllers, admission.Create, "eviction", plain, nil), "system's namespaces"},
		"a placeholder deleted":        {podRequest(controllers, admission.Delete, "", nil, ours), ""},
		"a pod of the system deleted":  {podRequest(controllers, admission.Delete, "", nil, plain), "change and delete only placeholder pods"},
		"a pod of a tenant deleted":    {podRequest(controllers, admission.Delete, "", nil, newPod("acme", func(*corev1.PodSpec) {})), "change and delete only placeholder pods"},
		"another image":                {podRequest(controllers, admission.Update, "", newPod("kube-system", func(s *corev1.PodSpec) { s.Containers[0].Image = "evil" }), plain), "controllers c"},
		"another image, in the middle": {podRequest(controllers, admission.Update, "resize", plain, plain), "change only the labels and annotations macrack.io/*"},
		"a container more":             {podRequest(controllers, admission.Update, "ephemeralcontainers", plain, plain), "change only the labels and annotations macrack.io/*"},
		"a status":                     {podRequest(controllers, admission.Update, "status", ours, ours), "change only the labels and annotations macrack.io/*"},
		"a pod of another as it is":    {podRequest(controllers, admission.Update, "", plain, plain), "controllers c"},
		"a pod made a placeholder":     {podRequest(controllers, admission.Update, "", labelled, unlabelled), "change and delete only placeholder pods"},
		"a placeholder mended":         {podRequest(controllers, admission.Update, "", ours, newPlaceholder("acme", func(p *corev1.Pod) { p.Labels, p.Annotations, p.OwnerReferences = nil, nil, nil })), ""},
		"a placeholder in maintenance": {podRequest(controllers, admission.Update, "", newPlaceholder("acme", func(p *corev1.Pod) { p.Annotations["macrack.io/maintenance"] = "true" }), ours), ""},
		"a placeholder given away":     {podRequest(controllers, admission.Update, "", newPlaceholder("acme", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }), ours), "with one owner, a MacOSInstance"},
		"its image":                    {podRequest(controllers, admission.Update, "", newPlaceholder("acme", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "evil" }), ours), "change only the labels and annotations macrack.io/*"},
		"its tolerations":              {podRequest(controllers, admission.Update, "", newPlaceholder("acme", func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, p.Spec.Tolerations[0]) }), ours), "change only the labels and annotations macrack.io/*"},
		"a label of the tenant's":      {podRequest(controllers, admission.Update, "", newPlaceholder("acme", func(p *corev1.Pod) { p.Labels["app"] = "web" }), ours), "change only the labels and annotations macrack.io/*"},
		"a label taken away":           {podRequest(controllers, admission.Update, "", ours, newPlaceholder("acme", func(p *corev1.Pod) { p.Labels["app"] = "web" })), "change only the labels and annotations macrack.io/*"},
		"a finalizer":                  {podRequest(controllers, admission.Update, "", newPlaceholder("acme", func(p *corev1.Pod) { p.Finalizers = []string{"a.b/c"} }), ours), "change only the labels and annotations macrack.io/*"},
		"all pods deleted":             {podRequest(controllers, admission.Delete, "", nil, nil), "change and delete only placeholder pods"},
		"others delete what they may":  {podRequest(admin, admission.Delete, "", nil, plain), ""},
		"others change what they may":  {podRequest(admin, admission.Update, "", newPod("kube-system", func(s *corev1.PodSpec) { s.Containers[0].Image = "b" }), plain), ""},
	} {
		t.Run(name, func(t *testing.T) { checkRefused(t, validate(t, plugin, tt.request), tt.refused) })
	}
}

func TestControllersAndNodes(t *testing.T) {
	plugin := newPlugin(t)
	const acme, nothing = "macrack.io/tenant=acme", "change only the taints macrack.io/*"
	linux := func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "linux-1"}} }
	mac := func() *corev1.Node { return newNode("2", acme, "node.kubernetes.io/not-ready") }
	for name, tt := range map[string]struct {
		operation   admission.Operation // Update
		subresource string
		old, new    *corev1.Node
		refused     string
	}{
		"a Linux machine":            {old: linux(), new: with(linux(), func(n *corev1.Node) { n.Spec.Taints = newNode("", acme).Spec.Taints }), refused: "write only to the Nodes of Macs"},
		"a Linux machine as a Mac":   {old: linux(), new: newNode("2", "macrack.io/unleased"), refused: "write only to the Nodes of Macs"},
		"a new Node":                 {operation: admission.Create, new: newNode("2", "macrack.io/unleased"), refused: "write only to the Nodes of Macs"},
		"a Node deleted":             {operation: admission.Delete, old: mac(), refused: ""},
		"a status":                   {subresource: "status", old: mac(), new: mac(), refused: "write only to the Nodes of Macs"},
		"its own taints":             {old: mac(), new: newNode("2", "node.kubernetes.io/not-ready", "macrack.io/unleased")},
		"another's taint taken away": {old: mac(), new: newNode("2", acme), refused: nothing},
		"another's taint":            {old: mac(), new: newNode("2", acme, "node.kubernetes.io/not-ready", "evil"), refused: nothing},
		"a label":                    {old: mac(), new: with(mac(), func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }), refused: nothing},
		"an annotation":              {old: mac(), new: with(mac(), func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }), refused: nothing},
		"a finalizer":                {old: mac(), new: with(mac(), func(n *corev1.Node) { n.Finalizers = []string{"a.b/c"} }), refused: nothing},
		"an owner":                   {old: mac(), new: with(mac(), func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "a"}} }), refused: nothing},
		"cordoned":                   {old: mac(), new: with(mac(), func(n *corev1.Node) { n.Spec.Unschedulable = true }), refused: nothing},
	} {
		t.Run(name, func(t *testing.T) {
			r := request{
				user: controllers, operation: tt.operation, subresource: tt.subresource,
				resource: corev1.SchemeGroupVersion.WithResource("nodes"), kind: corev1.SchemeGroupVersion.WithKind("Node"),
			}
			if r.operation == "" {
				r.operation = admission.Update
			}
			if tt.new != nil {
				r.new = tt.new
			}
			if tt.old != nil {
				r.old = tt.old
			}
			if r.operation == admission.Delete {
				tt.refused = "Node"
			}
			checkRefused(t, validate(t, plugin, r), tt.refused)
		})
	}
}

// newBudget returns the PodDisruptionBudget of the lease build.
func newBudget(changes ...func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "acme", Name: "build-lease", OwnerReferences: []metav1.OwnerReference{{APIVersion: "rack.macrack.io/v1alpha1", Kind: "MacNodeLease", Name: "build", UID: "u-build"}},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr.To(intstr.FromInt32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"macrack.io/lease": "build"}},
		},
	}
	for _, change := range changes {
		change(b)
	}
	return b
}

// ofInstance makes a budget that of the instance x, as earlier versions had.
func ofInstance(b *policyv1.PodDisruptionBudget) {
	b.ObjectMeta = newPlaceholder("acme").ObjectMeta
	b.Spec.MinAvailable = ptr.To(intstr.FromInt32(1))
	b.Spec.Selector.MatchLabels = map[string]string{"macrack.io/instance": "x"}
}

// budgetRequest returns a request for a PodDisruptionBudget, which is and was so.
func budgetRequest(user user.Info, operation admission.Operation, new, old *policyv1.PodDisruptionBudget) request {
	r := request{
		user: user, operation: operation, namespace: "acme",
		resource: policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), kind: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
	}
	if new != nil {
		r.new = new
	}
	if old != nil {
		r.old = old
	}
	return r
}

func TestControllersAndDisruptionBudgets(t *testing.T) {
	plugin := newPlugin(t)
	foreign := newBudget(func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences = nil })
	const owned, alone = "only PodDisruptionBudgets that a MacNodeLease or a MacOSInstance owns", "only for the placeholder pods of the owner"
	for name, tt := range map[string]struct {
		operation admission.Operation
		new, old  *policyv1.PodDisruptionBudget
		refused   string
	}{
		"its own":                    {admission.Create, newBudget(), nil, ""},
		"its own, deleted":           {admission.Delete, nil, newBudget(), ""},
		"its own, changed":           {admission.Update, newBudget(), newBudget(), owned},
		"without an owner":           {admission.Create, foreign, nil, owned},
		"another's, deleted":         {admission.Delete, nil, foreign, owned},
		"of a Deployment":            {admission.Create, newBudget(func(b *policyv1.PodDisruptionBudget) { b.OwnerReferences[0].Kind = "Deployment" }), nil, owned},
		"for all pods":               {admission.Create, newBudget(func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels = nil }), nil, alone},
		"for another lease":          {admission.Create, newBudget(func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels["macrack.io/lease"] = "y" }), nil, alone},
		"for one of two":             {admission.Create, newBudget(func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = ptr.To(intstr.FromInt32(1)) }), nil, alone},
		"an instance's":              {admission.Create, newBudget(ofInstance), nil, ""},
		"an instance's, deleted":     {admission.Delete, nil, newBudget(ofInstance), ""},
		"an instance's, for another": {admission.Create, newBudget(ofInstance, func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector.MatchLabels["macrack.io/instance"] = "y" }), nil, alone},
		"for a hundred":              {admission.Create, newBudget(func(b *policyv1.PodDisruptionBudget) { b.Spec.MinAvailable = ptr.To(intstr.FromInt32(100)) }), nil, alone},
	} {
		t.Run(name, func(t *testing.T) {
			checkRefused(t, validate(t, plugin, budgetRequest(controllers, tt.operation, tt.new, tt.old)), tt.refused)
		})
	}
}
