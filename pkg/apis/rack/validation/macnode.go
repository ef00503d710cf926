package validation

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"macrack.io/macrack/pkg/apis/internal/check"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/rules"
)

const (
	// MaxMessage is the maximum number of bytes of a message of a status or of a condition.
	MaxMessage = check.MaxMessage
	// MaxConditionsSize is the maximum size of the conditions of a status, in bytes as stored.
	MaxConditionsSize = check.MaxConditionsSize
	// MaxManagedFields is the maximum number of managed fields in a request.
	MaxManagedFields = check.MaxManagedFields
	// MaxCheckMessage is the maximum number of bytes of the message of an image check.
	MaxCheckMessage = 1 << 10
	// MaxScrubEntry is the maximum number of bytes of an entry of a scrub report.
	MaxScrubEntry = 4 << 10
	// MaxScrubText is the maximum number of bytes of the entries of a scrub report together.
	MaxScrubText = 64 << 10
)

const (
	maxCachedImages = 256
	maxImageChecks  = 32
	maxScrubEntries = 64
	maxEndInstances = 8
)

// ValidateMacNode returns the errors in a new MacNode.
func ValidateMacNode(node *rack.MacNode) field.ErrorList {
	errs := check.NewMeta(&node.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	return append(errs, validateMacNodeSpec(&node.Spec, field.NewPath("spec"))...)
}

// ValidateMacNodeUpdate returns the errors in a change of a MacNode.
func ValidateMacNodeUpdate(node, old *rack.MacNode) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.UpdatedMeta(&node.ObjectMeta, &old.ObjectMeta)
	errs = append(errs, validateMacNodeSpec(&node.Spec, path)...)
	return append(errs, check.Unchanged(node.Spec.SerialNumber, old.Spec.SerialNumber, "another chassis is another MacNode", path.Child("serialNumber"))...)
}

// ValidateMacNodeStatusUpdate returns the errors in a change of a MacNode's status.
func ValidateMacNodeStatusUpdate(node, old *rack.MacNode) field.ErrorList {
	path := field.NewPath("status")
	status := &node.Status
	errs := check.UpdatedMeta(&node.ObjectMeta, &old.ObjectMeta)
	errs = append(errs, check.Enum(status.Phase, path.Child("phase"), rack.MacNodePending, rack.MacNodeAvailable, rack.MacNodeLeased,
		rack.MacNodeReleasing, rack.MacNodeOffline, rack.MacNodeMaintenance, rack.MacNodeQuarantined)...)
	errs = append(errs, check.Between(status.RunningVMs, 0, rules.MaxVMsPerMac, path.Child("runningVMs"))...)
	errs = append(errs, check.Text(status.BootID, 128, path.Child("bootID"))...)
	if status.LeaseRef != nil {
		errs = append(errs, validateLeaseReference(status.LeaseRef, path.Child("leaseRef"))...)
	}
	if status.Quarantine != nil {
		errs = append(errs, validateQuarantine(status.Quarantine, path.Child("quarantine"))...)
	}
	if status.Scrub != nil {
		errs = append(errs, validateScrub(status.Scrub, path.Child("scrub"))...)
	}
	if status.Hardware != nil {
		errs = append(errs, validateHardware(status.Hardware, path.Child("hardware"))...)
	}
	errs = append(errs, validateCachedImages(status.Images, path.Child("images"))...)
	errs = append(errs, validateImageChecks(status.ImageChecks, path.Child("imageChecks"))...)
	if status.Witness != nil {
		errs = append(errs, validateWitness(status.Witness, path.Child("witness"))...)
	}
	return append(errs, check.Conditions(status.Conditions, old.Status.Conditions, path.Child("conditions"))...)
}

func validateMacNodeSpec(spec *rack.MacNodeSpec, path *field.Path) field.ErrorList {
	errs := check.SerialNumber(spec.SerialNumber, path.Child("serialNumber"))
	errs = append(errs, check.Name(spec.ClassName, path.Child("className"))...)
	location := path.Child("location")
	errs = append(errs, check.Text(spec.Location.Site, 63, location.Child("site"))...)
	errs = append(errs, check.Text(spec.Location.Rack, 63, location.Child("rack"))...)
	return append(errs, check.Text(spec.Location.Shelf, 63, location.Child("shelf"))...)
}

func validateLeaseReference(ref *rack.LeaseReference, path *field.Path) field.ErrorList {
	errs := check.Label(ref.Namespace, path.Child("namespace"))
	errs = append(errs, check.Label(ref.Name, path.Child("name"))...)
	errs = append(errs, check.Text(string(ref.NamespaceUID), 128, path.Child("namespaceUID"))...)
	return append(errs, check.RequiredText(string(ref.UID), 128, path.Child("uid"))...)
}

func isSHA256(hash string) bool {
	if len(hash) != hex.EncodedLen(sha256.Size) {
		return false
	}
	_, err := hex.DecodeString(hash)
	return err == nil
}

// maxWrongMacs is the maximum number of Macs that a restore names as wrong.
const maxWrongMacs = 16

// ValidateMacNodeRestore returns the errors in a request to restore a Mac.
func ValidateMacNodeRestore(restore *rack.MacNodeRestore) field.ErrorList {
	errs := check.Text(restore.WitnessHash, 64, field.NewPath("witnessHash"))
	return append(errs, check.Names(restore.WrongMacs, maxWrongMacs, field.NewPath("wrongMacs"))...)
}

func validateWitness(witness *rack.MacNodeWitness, path *field.Path) field.ErrorList {
	head := path.Child("head")
	errs := check.NotNegative(witness.Head.Sequence, head.Child("sequence"))
	if hash := witness.Head.Hash; (hash != "" || witness.Head.Sequence > 0) && !isSHA256(hash) {
		errs = append(errs, field.Invalid(head.Child("hash"), "", "must be the SHA-256 of a record"))
	}
	if namespace := witness.Head.Namespace; namespace != "" {
		errs = append(errs, check.Label(namespace, head.Child("namespace"))...)
	}
	if witness.LeaseRef != nil {
		errs = append(errs, validateLeaseReference(witness.LeaseRef, path.Child("leaseRef"))...)
		errs = append(errs, check.UID(witness.LeaseRef.UID, path.Child("leaseRef", "uid"))...)
	}
	errs = append(errs, validateCaches(witness.Caches, path.Child("caches"))...)
	if len(witness.Instances) > rules.MaxVMsPerMac {
		return append(errs, field.TooMany(path.Child("instances"), len(witness.Instances), rules.MaxVMsPerMac))
	}
	for i, instance := range witness.Instances {
		at := path.Child("instances").Index(i)
		errs = append(errs, check.Label(instance.Name, at.Child("name"))...)
		errs = append(errs, check.UID(instance.UID, at.Child("uid"))...)
		errs = append(errs, check.Name(instance.ClassName, at.Child("className"))...)
		errs = append(errs, check.Name(instance.ImageName, at.Child("imageName"))...)
		if instance.MachineID == "" || instance.MACAddress == "" {
			errs = append(errs, field.Required(at.Child("machineID"), "and a MAC address, which a virtual machine has before its start"))
		}
		errs = append(errs, check.MachineID(instance.MachineID, at.Child("machineID"))...)
		errs = append(errs, check.MACAddress(instance.MACAddress, at.Child("macAddress"))...)
		for _, other := range witness.Instances[:i] {
			if other.Name == instance.Name || other.UID == instance.UID || other.MachineID == instance.MachineID || other.MACAddress == instance.MACAddress {
				errs = append(errs, field.Duplicate(at, instance.Name))
			}
		}
	}
	return errs
}

func validateQuarantine(quarantine *rack.Quarantine, path *field.Path) field.ErrorList {
	errs := check.RequiredText(quarantine.Reason, 128, path.Child("reason"))
	errs = append(errs, check.Lines(quarantine.Message, check.MaxMessage, path.Child("message"))...)
	errs = append(errs, check.Text(quarantine.BootID, 128, path.Child("bootID"))...)
	if len(quarantine.EndInstances) > maxEndInstances {
		errs = append(errs, field.TooMany(path.Child("endInstances"), len(quarantine.EndInstances), maxEndInstances))
	} else {
		for i, uid := range quarantine.EndInstances {
			errs = append(errs, check.RequiredText(uid, 128, path.Child("endInstances").Index(i))...)
		}
	}
	if quarantine.Since.IsZero() {
		errs = append(errs, field.Required(path.Child("since"), ""))
	}
	return errs
}

func validateScrub(scrub *rack.ScrubReport, path *field.Path) field.ErrorList {
	errs := check.RequiredText(string(scrub.LeaseUID), 128, path.Child("leaseUID"))
	if scrub.FinishedAt.IsZero() {
		errs = append(errs, field.Required(path.Child("finishedAt"), ""))
	}
	if len(strings.Join(scrub.Removed, ""))+len(strings.Join(scrub.Remaining, "")) > MaxScrubText {
		return append(errs, field.TooLong(path, "", MaxScrubText))
	}
	errs = append(errs, validateScrubEntries(scrub.Removed, path.Child("removed"))...)
	return append(errs, validateScrubEntries(scrub.Remaining, path.Child("remaining"))...)
}

func validateScrubEntries(entries []string, path *field.Path) field.ErrorList {
	if len(entries) > maxScrubEntries {
		return field.ErrorList{field.TooMany(path, len(entries), maxScrubEntries)}
	}
	var errs field.ErrorList
	for i, entry := range entries {
		errs = append(errs, check.Lines(entry, MaxScrubEntry, path.Index(i))...)
	}
	return errs
}

func validateHardware(hardware *rack.MacNodeHardware, path *field.Path) field.ErrorList {
	errs := check.Text(hardware.ModelIdentifier, 64, path.Child("modelIdentifier"))
	errs = append(errs, check.Text(hardware.SerialNumber, 64, path.Child("serialNumber"))...)
	errs = append(errs, check.Text(hardware.MacOSVersion, 64, path.Child("macOSVersion"))...)
	errs = append(errs, check.Text(hardware.AgentVersion, 128, path.Child("agentVersion"))...)
	errs = append(errs, check.Amount(hardware.CPU, zero, maxCPU, path.Child("cpu"))...)
	errs = append(errs, check.Amount(hardware.Memory, zero, maxMemory, path.Child("memory"))...)
	errs = append(errs, check.Amount(hardware.Storage, zero, maxStorage, path.Child("storage"))...)
	return append(errs, check.Amount(hardware.FreeStorage, zero, maxStorage, path.Child("freeStorage"))...)
}

func validateCachedImages(images []rack.CachedImage, path *field.Path) field.ErrorList {
	if len(images) > maxCachedImages {
		return field.ErrorList{field.TooMany(path, len(images), maxCachedImages)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, image := range images {
		at := path.Index(i)
		errs = append(errs, check.Name(image.Name, at.Child("name"))...)
		if seen[image.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), image.Name))
		}
		seen[image.Name] = true
		if image.Digest != "" {
			errs = append(errs, check.Digest(image.Digest, at.Child("digest"))...)
		}
		errs = append(errs, check.NotNegative(image.SizeBytes, at.Child("sizeBytes"))...)
	}
	return errs
}

func validateImageChecks(checks []rack.ImageCheck, path *field.Path) field.ErrorList {
	if len(checks) > maxImageChecks {
		return field.ErrorList{field.TooMany(path, len(checks), maxImageChecks)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, c := range checks {
		at := path.Index(i)
		errs = append(errs, check.Name(c.Name, at.Child("name"))...)
		if seen[c.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), c.Name))
		}
		seen[c.Name] = true
		errs = append(errs, check.NotNegative(c.ObservedGeneration, at.Child("observedGeneration"))...)
		errs = append(errs, check.RequiredText(c.Reason, 64, at.Child("reason"))...)
		errs = append(errs, check.Lines(c.Message, MaxCheckMessage, at.Child("message"))...)
	}
	return errs
}
