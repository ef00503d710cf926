package rules

// Reasons of refused instances that the records have and that are no rule's.
const (
	// ReasonNoSuchLease: the namespace has no lease of the name.
	ReasonNoSuchLease = "NoSuchLease"
	// ReasonLeasePending: the lease has no Mac yet, and none is free.
	ReasonLeasePending = "LeasePending"
	// ReasonLeaseNotUsable: the lease is being released, or has ended.
	ReasonLeaseNotUsable = "LeaseNotUsable"
	// ReasonNoSuchImage: the catalogue has no image of the name.
	ReasonNoSuchImage = "NoSuchImage"
	// ReasonImageNotReady: the image is not Ready.
	ReasonImageNotReady = "ImageNotReady"
	// ReasonNoSuchClass: the catalogue has no InstanceClass of the name.
	ReasonNoSuchClass = "NoSuchClass"
	// ReasonNoSuchMacClass: the catalogue has no MacNodeClass for the lease.
	ReasonNoSuchMacClass = "NoSuchMacClass"
	// ReasonDoesNotFit: the Mac has no room for the class.
	ReasonDoesNotFit = "DoesNotFit"
	// ReasonForeignOwner: the instance names an owner other than its lease.
	ReasonForeignOwner = "ForeignOwner"
)

// IsRuleReason reports whether a rejection for a reason is one of the three rules': a reason is unless it is known not to be.
func IsRuleReason(reason string) bool {
	switch reason {
	case ReasonNoSuchLease, ReasonLeasePending, ReasonLeaseNotUsable, ReasonNoSuchImage, ReasonImageNotReady,
		ReasonNoSuchClass, ReasonNoSuchMacClass, ReasonDoesNotFit, ReasonForeignOwner:
		return false
	}
	return true
}
