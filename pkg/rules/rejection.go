package rules

// Reasons of refused instances in records that do not belong to one of the three rules.
const (
	// ReasonNoSuchLease: the lease does not exist in the namespace.
	ReasonNoSuchLease = "NoSuchLease"
	// ReasonLeasePending: the lease has no Mac yet, and none is free.
	ReasonLeasePending = "LeasePending"
	// ReasonLeaseNotUsable: the lease is being released, or has ended.
	ReasonLeaseNotUsable = "LeaseNotUsable"
	// ReasonNoSuchImage: the image does not exist.
	ReasonNoSuchImage = "NoSuchImage"
	// ReasonImageNotReady: the image is not Ready.
	ReasonImageNotReady = "ImageNotReady"
	// ReasonNoSuchClass: the InstanceClass does not exist.
	ReasonNoSuchClass = "NoSuchClass"
	// ReasonNoSuchMacClass: the MacNodeClass of the lease does not exist.
	ReasonNoSuchMacClass = "NoSuchMacClass"
	// ReasonNoSuchCache: the lease does not have a cache of the instance.
	ReasonNoSuchCache = "NoSuchCache"
	// ReasonImageIdentityInUse: another instance has the machine identifier of the image.
	ReasonImageIdentityInUse = "ImageIdentityInUse"
	// ReasonDoesNotFit: the Mac does not have enough free resources for the class.
	ReasonDoesNotFit = "DoesNotFit"
	// ReasonForeignOwner: the instance has an owner reference to an object other than its lease.
	ReasonForeignOwner = "ForeignOwner"
)

// IsRuleReason reports whether a rejection with this reason belongs to one of the three rules.
// Unknown reasons do.
func IsRuleReason(reason string) bool {
	switch reason {
	case ReasonNoSuchLease, ReasonLeasePending, ReasonLeaseNotUsable, ReasonNoSuchImage, ReasonImageNotReady,
		ReasonNoSuchClass, ReasonNoSuchMacClass, ReasonNoSuchCache, ReasonImageIdentityInUse, ReasonDoesNotFit, ReasonForeignOwner:
		return false
	}
	return true
}
