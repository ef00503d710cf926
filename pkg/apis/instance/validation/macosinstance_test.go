package validation

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/internal/check/checktest"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

var (
	machineID  = base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))
	macAddress = "5e:01:23:45:67:89"
	publicKey  = newPublicKey()
)

func newPublicKey() string {
	key, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key)), "\n")
}

func validInstance() *instance.MacOSInstance {
	return &instance.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{Name: "vm1", Namespace: "acme", ResourceVersion: "1", Finalizers: []string{rules.FinalizerVM}},
		Spec: instance.MacOSInstanceSpec{
			LeaseName: "ci",
			ClassName: "small",
			ImageName: "macos-26.1",
			Resources: instance.InstanceResources{Requests: requests("1")},
			SSHAuthorizedKeys: []string{
				publicKey + " me@example.com",
				`restrict,command="uptime" ` + publicKey,
				publicKey + "\n",
			},
			StartupScript: "#!/bin/sh\necho grüße\n",
			Env: []instance.EnvVar{
				{Name: "CI", Value: "true"}, {Name: "EMPTY"},
				{Name: "TOKEN", ValueFrom: &instance.EnvVarSource{SecretKeyRef: &instance.KeySelector{Name: "ci", Key: "token"}}},
				{Name: "URL", ValueFrom: &instance.EnvVarSource{ConfigMapKeyRef: &instance.KeySelector{Name: "ci", Key: "url", Optional: ptr.To(true)}}},
			},
			EnvFrom: []instance.EnvFromSource{
				{Prefix: "S_", SecretRef: &instance.EnvSource{Name: "ci"}}, {ConfigMapRef: &instance.EnvSource{Name: "ci", Optional: ptr.To(true)}},
			},
			ActiveDeadlineSeconds: ptr.To[int64](3600), TTLSecondsAfterFinished: ptr.To[int32](0),
		},
		Status: instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending},
	}
}

func requests(amount string) instance.ResourceList {
	return instance.ResourceList{rules.ResourceMacOSVM: scalar.MustParse(amount)}
}

func TestValidateMacOSInstance(t *testing.T) {
	const resources = `spec.resources.requests[macrack.io/macos-vm]: `
	tests := map[string]struct {
		change func(*instance.MacOSInstance)
		want   []string
	}{
		"valid":           {func(*instance.MacOSInstance) {}, nil},
		"name of 63":      {func(i *instance.MacOSInstance) { i.Name = strings.Repeat("a", 63) }, nil},
		"name of 64":      {func(i *instance.MacOSInstance) { i.Name = strings.Repeat("a", 64) }, []string{"metadata.name: Invalid"}},
		"name with a dot": {func(i *instance.MacOSInstance) { i.Name = "a.b" }, []string{"metadata.name: Invalid"}},
		"forged floor":    {func(i *instance.MacOSInstance) { i.Finalizers = []string{rules.FinalizerFloor} }, []string{"metadata.finalizers[0]: Forbidden"}},
		"no lease":        {func(i *instance.MacOSInstance) { i.Spec.LeaseName = "" }, []string{"spec.leaseName: Required"}},
		"another's lease": {func(i *instance.MacOSInstance) { i.Spec.LeaseName = "globex/ci" }, []string{"spec.leaseName: Invalid"}},
		"no class":        {func(i *instance.MacOSInstance) { i.Spec.ClassName = "" }, []string{"spec.className: Required"}},
		"no image":        {func(i *instance.MacOSInstance) { i.Spec.ImageName = "" }, []string{"spec.imageName: Required"}},
		"1000m":           {func(i *instance.MacOSInstance) { i.Spec.Resources.Requests = requests("1000m") }, nil},
		"two VMs":         {func(i *instance.MacOSInstance) { i.Spec.Resources.Requests = requests("2") }, []string{resources + `Invalid value: "2": rule 1 (two VMs per Mac): must be 1, because an instance is one virtual machine; for two, create two instances`}},
		"no VM":           {func(i *instance.MacOSInstance) { i.Spec.Resources.Requests = requests("0") }, []string{resources + `Invalid value: "0": rule 1`}},
		"half a VM":       {func(i *instance.MacOSInstance) { i.Spec.Resources.Requests = requests("500m") }, []string{resources + "Invalid"}},
		"minus one VM":    {func(i *instance.MacOSInstance) { i.Spec.Resources.Requests = requests("-1") }, []string{resources + "Invalid"}},
		"no requests":     {func(i *instance.MacOSInstance) { i.Spec.Resources.Requests = nil }, []string{resources + "Required"}},
		"cpu as well": {func(i *instance.MacOSInstance) {
			i.Spec.Resources.Requests = requests("1")
			i.Spec.Resources.Requests["cpu"] = scalar.MustParse("4")
		}, []string{`spec.resources.requests: Unsupported value: "cpu": supported values: "macrack.io/macos-vm"`}},
		"cpu instead": {func(i *instance.MacOSInstance) {
			i.Spec.Resources.Requests = instance.ResourceList{"cpu": scalar.MustParse("1")}
		}, []string{"spec.resources.requests: Unsupported", resources + "Required"}},
		"empty key":  {func(i *instance.MacOSInstance) { i.Spec.SSHAuthorizedKeys = []string{""} }, []string{"spec.sshAuthorizedKeys[0]: Invalid"}},
		"comment":    {func(i *instance.MacOSInstance) { i.Spec.SSHAuthorizedKeys = []string{"# " + publicKey} }, []string{"spec.sshAuthorizedKeys[0]: Invalid"}},
		"two in one": {func(i *instance.MacOSInstance) { i.Spec.SSHAuthorizedKeys = []string{publicKey + "\n" + publicKey} }, []string{"spec.sshAuthorizedKeys[0]: Invalid value: \"(not shown)\": must be one public key on one line"}},
		"broken key": {func(i *instance.MacOSInstance) { i.Spec.SSHAuthorizedKeys = []string{publicKey[:40]} }, []string{"spec.sshAuthorizedKeys[0]: Invalid value: \"(not shown)\": must be a public key"}},
		"long key": {func(i *instance.MacOSInstance) {
			i.Spec.SSHAuthorizedKeys = []string{publicKey + " " + strings.Repeat("c", 16<<10)}
		}, []string{"spec.sshAuthorizedKeys[0]: Too long"}},
		"33 keys": {func(i *instance.MacOSInstance) { i.Spec.SSHAuthorizedKeys = make([]string, 33) }, []string{"spec.sshAuthorizedKeys: Too many"}},
		"caches": {func(i *instance.MacOSInstance) {
			i.Spec.Caches = []instance.InstanceCache{{Name: "derived-data"}, {Name: "gems", ReadOnly: true}}
		}, nil},
		"9 caches": {func(i *instance.MacOSInstance) { i.Spec.Caches = make([]instance.InstanceCache, 9) }, []string{"spec.caches: Too many: 9: must have at most 8"}},
		"cache twice": {func(i *instance.MacOSInstance) {
			i.Spec.Caches = []instance.InstanceCache{{Name: "a"}, {Name: "a", ReadOnly: true}}
		}, []string{"spec.caches[1].name: Duplicate"}},
		"path as a cache":    {func(i *instance.MacOSInstance) { i.Spec.Caches = []instance.InstanceCache{{Name: "../../a"}} }, []string{"spec.caches[0].name: Invalid"}},
		"no name of a cache": {func(i *instance.MacOSInstance) { i.Spec.Caches = []instance.InstanceCache{{}} }, []string{"spec.caches[0].name: Required"}},
		"64 KiB script":      {func(i *instance.MacOSInstance) { i.Spec.StartupScript = strings.Repeat("#", 64<<10) }, nil},
		"longer script":      {func(i *instance.MacOSInstance) { i.Spec.StartupScript = strings.Repeat("#", 64<<10+1) }, []string{"spec.startupScript: Too long"}},
		"binary script":      {func(i *instance.MacOSInstance) { i.Spec.StartupScript = "\xcf\xfa\xed\xfe" }, []string{"spec.startupScript: Invalid value: \"(not shown)\": must be valid UTF-8"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			i := validInstance()
			tt.change(i)
			checktest.Errors(t, tt.want, ValidateMacOSInstance(i))
		})
	}
}

func TestValidateDeadlines(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*instance.MacOSInstanceSpec)
		want   []string
	}{
		"neither":      {func(s *instance.MacOSInstanceSpec) { s.ActiveDeadlineSeconds, s.TTLSecondsAfterFinished = nil, nil }, nil},
		"the shortest": {func(s *instance.MacOSInstanceSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](1) }, nil},
		"the longest": {func(s *instance.MacOSInstanceSpec) {
			s.ActiveDeadlineSeconds, s.TTLSecondsAfterFinished = ptr.To[int64](94608000), ptr.To[int32](94608000)
		}, nil},
		"no time":           {func(s *instance.MacOSInstanceSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](0) }, []string{"spec.activeDeadlineSeconds: Invalid value: 0: must be 1 to 94608000"}},
		"too long":          {func(s *instance.MacOSInstanceSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](94608001) }, []string{"spec.activeDeadlineSeconds: Invalid"}},
		"deleted before":    {func(s *instance.MacOSInstanceSpec) { s.TTLSecondsAfterFinished = ptr.To[int32](-1) }, []string{"spec.ttlSecondsAfterFinished: Invalid value: -1: must be 0 to 94608000"}},
		"kept for too long": {func(s *instance.MacOSInstanceSpec) { s.TTLSecondsAfterFinished = ptr.To[int32](94608001) }, []string{"spec.ttlSecondsAfterFinished: Invalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := validInstance()
			tt.change(&i.Spec)
			checktest.Errors(t, tt.want, ValidateMacOSInstance(i))
		})
	}
}

func TestPrivateKeysAreNotRepeated(t *testing.T) {
	const secret = "-----BEGIN OPENSSH PRIVATE KEY----- c2VjcmV0"
	i := validInstance()
	i.Spec.SSHAuthorizedKeys = []string{secret}
	errs := ValidateMacOSInstance(i)
	checktest.Errors(t, []string{"spec.sshAuthorizedKeys[0]: Invalid"}, errs)
	assert.NotContains(t, errs.ToAggregate().Error(), "c2VjcmV0")
}

func TestValidateMacOSInstanceUpdate(t *testing.T) {
	changes := map[string]func(*instance.MacOSInstanceSpec){
		"leaseName":               func(s *instance.MacOSInstanceSpec) { s.LeaseName = "other" },
		"className":               func(s *instance.MacOSInstanceSpec) { s.ClassName = "large" },
		"imageName":               func(s *instance.MacOSInstanceSpec) { s.ImageName = "macos-27" },
		"sshAuthorizedKeys":       func(s *instance.MacOSInstanceSpec) { s.SSHAuthorizedKeys = nil },
		"startupScript":           func(s *instance.MacOSInstanceSpec) { s.StartupScript = "" },
		"env":                     func(s *instance.MacOSInstanceSpec) { s.Env = nil },
		"envFrom":                 func(s *instance.MacOSInstanceSpec) { s.EnvFrom = nil },
		"caches":                  func(s *instance.MacOSInstanceSpec) { s.Caches = []instance.InstanceCache{{Name: "a"}} },
		"activeDeadlineSeconds":   func(s *instance.MacOSInstanceSpec) { s.ActiveDeadlineSeconds = nil },
		"ttlSecondsAfterFinished": func(s *instance.MacOSInstanceSpec) { s.TTLSecondsAfterFinished = nil },
		"resources.requests[macrack.io/macos-vm]": func(s *instance.MacOSInstanceSpec) { s.Resources.Requests = requests("2") },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			i := validInstance()
			change(&i.Spec)
			checktest.Errors(t, []string{"spec." + name + ": Forbidden: field is immutable; create another instance instead"}, ValidateMacOSInstanceUpdate(i, validInstance()))
		})
	}
	i := validInstance()
	i.Finalizers = nil
	i.Labels = map[string]string{"a": "b"}
	i.Spec.Resources.Requests = requests("1000m")
	checktest.Errors(t, nil, ValidateMacOSInstanceUpdate(i, validInstance()))
}

func TestPhasesDoNotGoBack(t *testing.T) {
	for from, oldPhase := range phases {
		for to, newPhase := range phases {
			t.Run(string(oldPhase+" to "+newPhase), func(t *testing.T) {
				old := validInstance()
				old.Status = instance.MacOSInstanceStatus{Phase: oldPhase, MachineID: machineID, MACAddress: macAddress}
				i := old.DeepCopy()
				i.Status.Phase = newPhase
				errs := ValidateMacOSInstanceStatusUpdate(i, old)
				ended := oldPhase == instance.MacOSInstanceStopped || oldPhase == instance.MacOSInstanceFailed
				if oldPhase == newPhase || to > from && !ended {
					checktest.Errors(t, nil, errs)
				} else {
					checktest.Errors(t, []string{"status.phase: Invalid"}, errs)
				}
			})
		}
	}
}

func TestValidateMacOSInstanceStatusUpdate(t *testing.T) {
	const sha = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	condition := metav1.Condition{Type: "Scheduled", Status: metav1.ConditionTrue, Reason: "Scheduled", LastTransitionTime: metav1.NewTime(time.Unix(1, 0))}
	running := instance.MacOSInstanceStatus{
		Phase: instance.MacOSInstanceRunning, PodName: "vm1-vm", MachineID: machineID, MACAddress: macAddress, ImageDigest: sha,
		IPAddress:  &instance.IPAddress{Value: "192.168.64.2", Source: "DHCP"},
		Startup:    &instance.StartupResult{ExitCode: 1, Output: "failed\n"},
		Conditions: []metav1.Condition{condition},
	}
	pulling := instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePulling, PodName: "vm1-vm"}
	stopped := instance.MacOSInstanceStatus{Phase: instance.MacOSInstanceStopped}
	early, late := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	starting := instance.MacOSInstanceStatus{Phase: instance.MacOSInstanceStarting, PodName: "vm1-vm", MachineID: machineID, MACAddress: macAddress}
	started := starting
	started.StartedAt = &early
	tests := map[string]struct {
		old    instance.MacOSInstanceStatus
		change func(*instance.MacOSInstanceStatus)
		want   []string
	}{
		"valid":                            {pulling, func(s *instance.MacOSInstanceStatus) { *s = running }, nil},
		"identity":                         {pulling, func(s *instance.MacOSInstanceStatus) { s.MachineID, s.MACAddress = machineID, macAddress }, nil},
		"phase":                            {pulling, func(s *instance.MacOSInstanceStatus) { s.Phase = "Paused" }, []string{"status.phase: Unsupported"}},
		"no phase":                         {pulling, func(s *instance.MacOSInstanceStatus) { s.Phase = "" }, []string{"status.phase: Unsupported"}},
		"runs without an identity":         {pulling, func(s *instance.MacOSInstanceStatus) { s.Phase = instance.MacOSInstanceRunning }, []string{"status.machineID: Required", "status.macAddress: Required"}},
		"started":                          {starting, func(s *instance.MacOSInstanceStatus) { s.StartedAt = &early }, nil},
		"started without an identity":      {pulling, func(s *instance.MacOSInstanceStatus) { s.StartedAt = &early }, []string{"status.startedAt: Forbidden: a virtual machine has a machine ID and a MAC address before it starts"}},
		"started again":                    {started, func(s *instance.MacOSInstanceStatus) { s.StartedAt = &late }, []string{"status.startedAt: Forbidden: is 1970-01-01T00:00:01Z already, and never changes"}},
		"never started":                    {started, func(s *instance.MacOSInstanceStatus) { s.StartedAt = nil }, []string{"status.startedAt: Forbidden"}},
		"new machine ID":                   {running, func(s *instance.MacOSInstanceStatus) { s.MachineID = "AAAA" }, []string{"status.machineID: Forbidden: is " + machineID + " already, and never changes"}},
		"no machine ID":                    {running, func(s *instance.MacOSInstanceStatus) { s.MachineID = "" }, []string{"status.machineID: Required", "status.machineID: Forbidden"}},
		"new MAC address":                  {running, func(s *instance.MacOSInstanceStatus) { s.MACAddress = "5e:01:23:45:67:8a" }, []string{"status.macAddress: Forbidden"}},
		"after the end":                    {stopped, func(s *instance.MacOSInstanceStatus) { s.MachineID = machineID }, []string{"status.machineID: Forbidden: the instance is Stopped: its virtual machine may not start"}},
		"not base64":                       {pulling, func(s *instance.MacOSInstanceStatus) { s.MachineID = "machine 1" }, []string{"status.machineID: Invalid"}},
		"base64 in two ways":               {pulling, func(s *instance.MacOSInstanceStatus) { s.MachineID = "AB==" }, []string{"status.machineID: Invalid"}},
		"base64 of two lines":              {pulling, func(s *instance.MacOSInstanceStatus) { s.MachineID = "AAAA\nAAAA" }, []string{"status.machineID: Invalid"}},
		"long machine ID":                  {pulling, func(s *instance.MacOSInstanceStatus) { s.MachineID = strings.Repeat("A", 4100) }, []string{"status.machineID: Too long"}},
		"MAC in capitals":                  {pulling, func(s *instance.MacOSInstanceStatus) { s.MACAddress = "5E:01:23:45:67:89" }, []string{"status.macAddress: Invalid"}},
		"MAC with dashes":                  {pulling, func(s *instance.MacOSInstanceStatus) { s.MACAddress = "5e-01-23-45-67-89" }, []string{"status.macAddress: Invalid"}},
		"MAC of eight bytes":               {pulling, func(s *instance.MacOSInstanceStatus) { s.MACAddress = "5e:01:23:45:67:89:ab:cd" }, []string{"status.macAddress: Invalid"}},
		"Apple's MAC":                      {pulling, func(s *instance.MacOSInstanceStatus) { s.MACAddress = "a4:83:e7:00:00:01" }, []string{"status.macAddress: Invalid value: \"a4:83:e7:00:00:01\": must be a locally administered unicast address"}},
		"half an identity":                 {pulling, func(s *instance.MacOSInstanceStatus) { s.MachineID = machineID }, []string{"status.macAddress: Required value: a machine ID and a MAC address must be set together"}},
		"multicast MAC":                    {pulling, func(s *instance.MacOSInstanceStatus) { s.MACAddress = "5f:01:23:45:67:89" }, []string{"status.macAddress: Invalid"}},
		"another pod":                      {pulling, func(s *instance.MacOSInstanceStatus) { s.PodName = "vm1-vm2" }, []string{"status.podName: Invalid value: \"vm1-vm2\": is vm1-vm already"}},
		"another pod, before there is one": {instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending, PodName: "vm1-vm"}, func(s *instance.MacOSInstanceStatus) { s.PodName = "vm1-vm-x2x2x" }, nil},
		"no pod, before there is one":      {instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending, PodName: "vm1-vm"}, func(s *instance.MacOSInstanceStatus) { s.PodName = "" }, []string{"status.podName: Invalid"}},
		"another pod, scheduled at once":   {instance.MacOSInstanceStatus{Phase: instance.MacOSInstancePending, PodName: "vm1-vm"}, func(s *instance.MacOSInstanceStatus) { s.PodName, s.Phase = "vm1-vm2", instance.MacOSInstanceScheduled }, []string{"status.podName: Invalid"}},
		"no pod":                           {pulling, func(s *instance.MacOSInstanceStatus) { s.PodName = "" }, []string{"status.podName: Invalid"}},
		"IP":                               {running, func(s *instance.MacOSInstanceStatus) { s.IPAddress = &instance.IPAddress{Value: "vm1.example.com"} }, []string{"status.ipAddress.value: Invalid"}},
		"IPv6": {running, func(s *instance.MacOSInstanceStatus) {
			s.IPAddress = &instance.IPAddress{Value: "fd00::2", Source: "ARP"}
		}, nil},
		"IP of none":   {running, func(s *instance.MacOSInstanceStatus) { s.IPAddress = &instance.IPAddress{Value: "0.0.0.0"} }, []string{"status.ipAddress.value: Invalid"}},
		"source":       {running, func(s *instance.MacOSInstanceStatus) { s.IPAddress.Source = "Guess" }, []string{"status.ipAddress.source: Unsupported"}},
		"digest":       {pulling, func(s *instance.MacOSInstanceStatus) { s.ImageDigest = "latest" }, []string{"status.imageDigest: Invalid"}},
		"long output":  {running, func(s *instance.MacOSInstanceStatus) { s.Startup.Output = strings.Repeat("o", 4097) }, []string{"status.startup.output: Too long"}},
		"long message": {pulling, func(s *instance.MacOSInstanceStatus) { s.Message = strings.Repeat("o", 32<<10+1) }, []string{"status.message: Too long"}},
		"condition":    {running, func(s *instance.MacOSInstanceStatus) { s.Conditions[0].Reason = "no reason" }, []string{"status.conditions[0].reason: Invalid"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			old := validInstance()
			tt.old.DeepCopyInto(&old.Status)
			i := old.DeepCopy()
			tt.change(&i.Status)
			checktest.Errors(t, tt.want, ValidateMacOSInstanceStatusUpdate(i, old))
		})
	}
}

func TestValidateMacOSInstanceStop(t *testing.T) {
	tests := map[string]struct {
		stop instance.MacOSInstanceStop
		want []string
	}{
		"default":     {instance.MacOSInstanceStop{}, nil},
		"at once":     {instance.MacOSInstanceStop{GracePeriodSeconds: ptr.To(int64(0)), Reason: "done"}, nil},
		"ten minutes": {instance.MacOSInstanceStop{GracePeriodSeconds: ptr.To(int64(600))}, nil},
		"longer":      {instance.MacOSInstanceStop{GracePeriodSeconds: ptr.To(int64(601))}, []string{"gracePeriodSeconds: Invalid value: 601: must be 0 to 600"}},
		"negative":    {instance.MacOSInstanceStop{GracePeriodSeconds: ptr.To(int64(-1))}, []string{"gracePeriodSeconds: Invalid"}},
		"long reason": {instance.MacOSInstanceStop{Reason: strings.Repeat("r", 257)}, []string{"reason: Too long"}},
		"two lines":   {instance.MacOSInstanceStop{Reason: "a\nb"}, []string{"reason: Invalid"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { checktest.Errors(t, tt.want, ValidateMacOSInstanceStop(&tt.stop)) })
	}
}

// FuzzValidateMacOSInstance looks for an instance that is valid although it is more than one
// virtual machine or has keys that are not, for an identity or an end that changes, and for panics.
func FuzzValidateMacOSInstance(f *testing.F) {
	ended := validInstance()
	ended.Status = instance.MacOSInstanceStatus{Phase: instance.MacOSInstanceFailed, MachineID: machineID, MACAddress: macAddress}
	for _, i := range []*instance.MacOSInstance{validInstance(), ended} {
		data, err := json.Marshal(i)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		i := &instance.MacOSInstance{}
		if json.Unmarshal(data, i) != nil {
			return
		}
		if len(ValidateMacOSInstance(i)) == 0 {
			amount := i.Spec.Resources.Requests[rules.ResourceMacOSVM].Value()
			if len(i.Spec.Resources.Requests) != 1 || amount.Cmp(one) != 0 {
				t.Errorf("requests %v are valid", i.Spec.Resources.Requests)
			}
			for _, key := range i.Spec.SSHAuthorizedKeys {
				if strings.Contains(strings.TrimSuffix(key, "\n"), "\n") {
					t.Errorf("a key of several lines is valid: %q", key)
				}
			}
		}
		ValidateMacOSInstanceUpdate(i, ended)
		if len(ValidateMacOSInstanceStatusUpdate(i, ended)) == 0 {
			if i.Status.Phase != ended.Status.Phase || i.Status.MachineID != machineID || i.Status.MACAddress != macAddress {
				t.Errorf("what has ended changes to %+v", i.Status)
			}
		}
		ValidateMacOSInstanceStatusUpdate(ended, i)
	})
}
