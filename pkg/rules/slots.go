package rules

// CheckSlot refuses a third instance on a lease; taken has the names of the others.
func CheckSlot(lease string, taken []string) error {
	if len(taken) < MaxVMsPerMac {
		return nil
	}
	return refuse(TwoVMsPerChassis, "lease %q has %d of %d instances (%q); stop or delete one of them, or lease another Mac",
		lease, len(taken), MaxVMsPerMac, taken)
}

// CheckRunning refuses a number of running virtual machines above the maximum of a Mac.
func CheckRunning(node string, running int32) error {
	if running <= MaxVMsPerMac {
		return nil
	}
	return refuse(TwoVMsPerChassis, "Mac %q would run %d virtual machines; the limit is %d; stop one first", node, running, MaxVMsPerMac)
}
