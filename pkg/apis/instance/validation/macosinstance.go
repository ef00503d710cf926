package validation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/rules"
)

const (
	// MaxMessage is the maximum number of bytes of the message of a status or of a condition.
	MaxMessage = check.MaxMessage
	// MaxStartupOutput is the maximum number of bytes kept of the output of a startup script.
	MaxStartupOutput = 4 << 10
)

const (
	maxRequests          = 16
	maxSSHAuthorizedKeys = 32
	maxSSHAuthorizedKey  = 16 << 10
	maxAllAuthorizedKeys = 64 << 10
	maxStartupScript     = 64 << 10
	maxMachineID         = 4 << 10
	maxCaches            = 8
)

// phases lists the phases of an instance in order; an instance can skip some.
var phases = []instance.MacOSInstancePhase{
	instance.MacOSInstancePending,
	instance.MacOSInstanceScheduled,
	instance.MacOSInstancePulling,
	instance.MacOSInstanceStarting,
	instance.MacOSInstanceRunning,
	instance.MacOSInstanceStopping,
	instance.MacOSInstanceStopped,
	instance.MacOSInstanceFailed,
}

// ValidateMacOSInstance returns the errors in a new MacOSInstance.
func ValidateMacOSInstance(i *instance.MacOSInstance) field.ErrorList {
	errs := check.NewMeta(&i.ObjectMeta, true, apivalidation.NameIsDNSLabel, rules.FinalizerVM)
	path := field.NewPath("spec")
	errs = append(errs, check.Label(i.Spec.LeaseName, path.Child("leaseName"))...)
	errs = append(errs, check.Name(i.Spec.ClassName, path.Child("className"))...)
	errs = append(errs, check.Name(i.Spec.ImageName, path.Child("imageName"))...)
	errs = append(errs, validateRequests(i.Spec.Resources.Requests, path.Child("resources", "requests"))...)
	errs = append(errs, validateSSHAuthorizedKeys(i.Spec.SSHAuthorizedKeys, path.Child("sshAuthorizedKeys"))...)
	errs = append(errs, check.Lines(i.Spec.StartupScript, maxStartupScript, path.Child("startupScript"))...)
	errs = append(errs, validateEnvironment(&i.Spec, path)...)
	errs = append(errs, validateCaches(i.Spec.Caches, path.Child("caches"))...)
	if seconds := i.Spec.ActiveDeadlineSeconds; seconds != nil {
		errs = append(errs, check.Between(*seconds, 1, rules.MaxInstanceSeconds, path.Child("activeDeadlineSeconds"))...)
	}
	if seconds := i.Spec.TTLSecondsAfterFinished; seconds != nil {
		errs = append(errs, check.Between(int64(*seconds), 0, rules.MaxInstanceSeconds, path.Child("ttlSecondsAfterFinished"))...)
	}
	return errs
}

// ValidateMacOSInstanceUpdate returns the errors in a change of a MacOSInstance.
func ValidateMacOSInstanceUpdate(i, old *instance.MacOSInstance) field.ErrorList {
	errs := check.UpdatedMeta(&i.ObjectMeta, &old.ObjectMeta)
	return append(errs, check.Unchanged(i.Spec, old.Spec, "create another instance instead", field.NewPath("spec"))...)
}

// ValidateMacOSInstanceStatusUpdate returns the errors in a change of a MacOSInstance's status.
func ValidateMacOSInstanceStatusUpdate(i, oldInstance *instance.MacOSInstance) field.ErrorList {
	path := field.NewPath("status")
	status, old := &i.Status, &oldInstance.Status
	errs := check.UpdatedMeta(&i.ObjectMeta, &oldInstance.ObjectMeta)
	errs = append(errs, validatePhase(status, old, path)...)
	errs = append(errs, validateIdentity(status, old, path)...)
	errs = append(errs, validateStartedAt(status, old, path.Child("startedAt"))...)
	errs = append(errs, check.Lines(status.Message, check.MaxMessage, path.Child("message"))...)
	if status.PodName != "" {
		errs = append(errs, check.Name(status.PodName, path.Child("podName"))...)
	}
	// Before the pod exists, its name may turn out to be in use.
	hasPod := (status.Phase != instance.MacOSInstancePending || old.Phase != instance.MacOSInstancePending) && !awaitsRestoredPod(old)
	if old.PodName != "" && status.PodName != old.PodName && (status.PodName == "" || hasPod) {
		errs = append(errs, field.Invalid(path.Child("podName"), status.PodName, fmt.Sprintf("is %s already: an instance has one placeholder pod in its life", old.PodName)))
	}
	if status.IPAddress != nil {
		errs = append(errs, validateIPAddress(status.IPAddress, path.Child("ipAddress"))...)
	}
	if status.ImageDigest != "" {
		errs = append(errs, check.Digest(status.ImageDigest, path.Child("imageDigest"))...)
	}
	if status.Startup != nil {
		errs = append(errs, check.Lines(status.Startup.Output, MaxStartupOutput, path.Child("startup", "output"))...)
	}
	return append(errs, check.Conditions(status.Conditions, oldInstance.Status.Conditions, path.Child("conditions"))...)
}

// awaitsRestoredPod reports whether an instance was restored and has no new placeholder pod yet.
func awaitsRestoredPod(status *instance.MacOSInstanceStatus) bool {
	c := meta.FindStatusCondition(status.Conditions, instance.MacOSInstanceScheduledCondition)
	return c != nil && c.Reason == instance.ReasonRestored
}

// ValidateMacOSInstanceStop returns the errors in a MacOSInstanceStop.
func ValidateMacOSInstanceStop(stop *instance.MacOSInstanceStop) field.ErrorList {
	errs := check.Text(stop.Reason, 256, field.NewPath("reason"))
	if stop.GracePeriodSeconds != nil {
		errs = append(errs, check.Between(*stop.GracePeriodSeconds, 0, int64(rules.MaxStopGrace.Seconds()), field.NewPath("gracePeriodSeconds"))...)
	}
	return errs
}

// validateCaches checks the names of the caches. The registry checks that the lease has them.
func validateCaches(caches []instance.InstanceCache, path *field.Path) field.ErrorList {
	if n := len(caches); n > maxCaches {
		return field.ErrorList{field.TooMany(path, n, maxCaches)}
	}
	var errs field.ErrorList
	names := map[string]bool{}
	for i, cache := range caches {
		at := path.Index(i).Child("name")
		errs = append(errs, check.Label(cache.Name, at)...)
		if names[cache.Name] {
			errs = append(errs, field.Duplicate(at, cache.Name))
		}
		names[cache.Name] = true
	}
	return errs
}

// validateRequests refuses anything but one macrack.io/macos-vm: an instance is one virtual
// machine.
func validateRequests(requests instance.ResourceList, path *field.Path) field.ErrorList {
	if n := len(requests); n > maxRequests {
		return field.ErrorList{field.TooMany(path, n, maxRequests)}
	}
	var errs field.ErrorList
	for _, name := range sortedNames(requests) {
		if name != rules.ResourceMacOSVM {
			errs = append(errs, field.NotSupported(path, name, []string{rules.ResourceMacOSVM}))
		}
	}
	amount, found := requests[rules.ResourceMacOSVM]
	if !found {
		return append(errs, field.Required(path.Key(rules.ResourceMacOSVM), "must be 1, which is also the default"))
	}
	value, invalid := check.ParsedAmount(amount, path.Key(rules.ResourceMacOSVM))
	if len(invalid) > 0 {
		return append(errs, invalid...)
	}
	if value.Cmp(one) != 0 {
		errs = append(errs, field.Invalid(path.Key(rules.ResourceMacOSVM), amount.Text,
			fmt.Sprintf("%s: must be 1, because an instance is one virtual machine; for two, create two instances", rules.TwoVMsPerChassis)))
	}
	return errs
}

func sortedNames(requests instance.ResourceList) []string {
	names := make([]string, 0, len(requests))
	for name := range requests {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// validateSSHAuthorizedKeys checks keys. Errors do not repeat them, because one may be a private
// key by mistake.
func validateSSHAuthorizedKeys(keys []string, path *field.Path) field.ErrorList {
	if len(keys) > maxSSHAuthorizedKeys {
		return field.ErrorList{field.TooMany(path, len(keys), maxSSHAuthorizedKeys)}
	}
	var errs field.ErrorList
	if len(strings.Join(keys, "")) > maxAllAuthorizedKeys {
		errs = append(errs, field.TooLong(path, "", maxAllAuthorizedKeys))
	}
	for i, key := range keys {
		if len(key) > maxSSHAuthorizedKey {
			errs = append(errs, field.TooLong(path.Index(i), "", maxSSHAuthorizedKey))
		} else if err := checkSSHAuthorizedKey(key); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), "(not shown)", err.Error()))
		}
	}
	return errs
}

func checkSSHAuthorizedKey(key string) error {
	key = strings.TrimSuffix(key, "\n")
	if errs := check.Text(key, maxSSHAuthorizedKey, nil); len(errs) > 0 {
		return fmt.Errorf("must be one public key on one line, as in authorized_keys")
	}
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(key)); err != nil {
		return fmt.Errorf("must be a public key as in authorized_keys, such as \"ssh-ed25519 AAAA... name\"")
	}
	return nil
}

// validatePhase refuses to go back: an ended instance does not start again.
func validatePhase(status, old *instance.MacOSInstanceStatus, path *field.Path) field.ErrorList {
	at := path.Child("phase")
	if errs := check.Enum(status.Phase, at, phases...); len(errs) > 0 {
		return errs
	}
	switch {
	case status.Phase == old.Phase:
	case rules.InstanceEnded(old.Phase):
		return field.ErrorList{field.Invalid(at, status.Phase, fmt.Sprintf("%s is final; create another instance instead", old.Phase))}
	case slices.Index(phases, status.Phase) < slices.Index(phases, old.Phase):
		return field.ErrorList{field.Invalid(at, status.Phase, fmt.Sprintf("is %s already, and does not go back", old.Phase))}
	}
	var errs field.ErrorList
	if status.Phase == instance.MacOSInstanceRunning {
		if status.MachineID == "" {
			errs = append(errs, field.Required(path.Child("machineID"), "required for a running virtual machine"))
		}
		if status.MACAddress == "" {
			errs = append(errs, field.Required(path.Child("macAddress"), "required for a running virtual machine"))
		}
	}
	return errs
}

// validateStartedAt checks that the start time of a virtual machine does not change.
func validateStartedAt(status, old *instance.MacOSInstanceStatus, path *field.Path) field.ErrorList {
	switch {
	case status.StartedAt.Equal(old.StartedAt):
		return nil
	case old.StartedAt != nil:
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("is %s already, and never changes", old.StartedAt.UTC().Format(time.RFC3339)))}
	case status.MachineID == "" || status.MACAddress == "":
		return field.ErrorList{field.Forbidden(path, "a virtual machine has a machine ID and a MAC address before it starts")}
	}
	return nil
}

// validateIdentity checks the machine ID and the MAC address. Each value has one spelling, so that
// equal values are equal strings.
func validateIdentity(status, old *instance.MacOSInstanceStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, id := range []struct {
		name, new, old string
		valid          func(string, *field.Path) field.ErrorList
	}{
		{"machineID", status.MachineID, old.MachineID, check.MachineID},
		{"macAddress", status.MACAddress, old.MACAddress, check.MACAddress},
	} {
		at := path.Child(id.name)
		switch {
		case id.new == id.old:
		case id.old != "":
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("is %s already, and never changes", id.old)))
		case rules.InstanceEnded(old.Phase):
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("the instance is %s: its virtual machine may not start", old.Phase)))
		default:
			errs = append(errs, id.valid(id.new, at)...)
		}
	}
	if len(errs) == 0 && (status.MachineID == "") != (status.MACAddress == "") && (old.MachineID == "") == (old.MACAddress == "") {
		errs = append(errs, field.Required(path.Child("macAddress"), "a machine ID and a MAC address must be set together"))
	}
	return errs
}

func validateIPAddress(ip *instance.IPAddress, path *field.Path) field.ErrorList {
	errs := check.Enum(ip.Source, path.Child("source"), "", "GuestAgent", "DHCP", "ARP")
	if len(ip.Value) > 64 {
		return append(errs, field.TooLong(path.Child("value"), "", 64))
	}
	if !IsHostAddress(ip.Value) {
		errs = append(errs, field.Invalid(path.Child("value"), ip.Value, "must be the IP address of a host, such as 192.168.64.2"))
	}
	return errs
}

// IsHostAddress reports whether value is the IP address of a single host.
func IsHostAddress(value string) bool {
	address, err := netip.ParseAddr(value)
	return err == nil && address.Zone() == "" && !address.IsUnspecified() && !address.IsMulticast()
}
