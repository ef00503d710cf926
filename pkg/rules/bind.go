package rules

// BindFacts are the facts that decide whether a lease may be bound to a Mac.
type BindFacts struct {
	// Mac is the name of the MacNode.
	Mac string
	// Phase is the phase of the Mac.
	Phase string
	// Leased: the Mac belongs to a lease.
	Leased bool
	// Deleting: the MacNode is being deleted.
	Deleting bool
	// Unconfirmed: the server may have lost records that the Mac has seen.
	Unconfirmed bool
	// Class and SerialNumber are those of the Mac.
	Class, SerialNumber string
	// WantedClass and WantedSerialNumber are what the lease asks for. An empty serial number asks
	// for any Mac of the class.
	WantedClass, WantedSerialNumber string
}

// CheckBind refuses to bind a lease to a Mac that is not free, or is not the Mac that the lease
// asks for.
func CheckBind(f BindFacts) error {
	switch {
	case f.Leased:
		return refuse(OneTenantPerChassis, "Mac %q belongs to another lease; it is free when that one is released", f.Mac)
	case f.Unconfirmed:
		return refuse(OneTenantPerChassis, "Mac %q has not reported since the API server may have been restored from a backup, and may serve another tenant; wait for its agent", f.Mac)
	case f.Phase != macAvailable:
		return refuse(OneTenantPerChassis, "Mac %q is %s; only a Mac that is Available can be leased", f.Mac, f.Phase)
	case f.Deleting:
		return refuse(OneTenantPerChassis, "Mac %q is being removed from the fleet; bind another", f.Mac)
	case f.Class != f.WantedClass:
		return refuse(Fit, "Mac %q is of class %q, the lease asks for %q", f.Mac, f.Class, f.WantedClass)
	case f.WantedSerialNumber != "" && f.SerialNumber != f.WantedSerialNumber:
		return refuse(Fit, "Mac %q has serial number %s, the lease asks for %s", f.Mac, f.SerialNumber, f.WantedSerialNumber)
	}
	return nil
}
