package why

import (
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// nextForLease adds the steps that help a lease.
func nextForLease(e *Explanation, lease *rackv1alpha1.MacNodeLease) {
	ns, name := lease.Namespace, lease.Name
	switch e.reason(rackv1alpha1.MacNodeLeaseConditionBound) {
	case rackv1alpha1.ReasonUnknownClass, rackv1alpha1.ReasonEmptyClass:
		e.next("See the classes that have Macs, then create the lease again with one of them", "kubectl get macnodeclasses")
		e.next("Delete this lease; it has no Mac and costs nothing", "kubectl delete mnl %s -n %s", name, ns)
		return
	case rackv1alpha1.ReasonNoMacAvailable, rackv1alpha1.ReasonMacNotAvailable:
		e.next("See the number of free Macs of each class", "kubectl get macnodeclasses")
		e.next("Wait until the lease has a Mac", "kubectl wait --for=condition=Bound mnl/%s -n %s --timeout=24h", name, ns)
		return
	}
	switch lease.Status.Phase {
	case rackv1alpha1.MacNodeLeaseBound, rackv1alpha1.MacNodeLeaseHeld:
		if e.Blocking != nil {
			e.next("Ask the operator for the state of the Mac", "kubectl macrack why mn/%s", lease.Status.NodeName)
			return
		}
		if len(lease.Status.Instances) < rules.MaxVMsPerMac {
			e.next("Run a command in a new virtual machine", "kubectl macrack run -n %s --lease %s --image IMAGE --class CLASS -- COMMAND", ns, name)
		}
		for _, slot := range lease.Status.Instances {
			e.next("See the state of its instance", "kubectl macrack why mi/%s -n %s", slot.Name, ns)
		}
	case rackv1alpha1.MacNodeLeaseReleasing:
		for _, slot := range lease.Status.Instances {
			e.next("See why an instance has not stopped", "kubectl macrack why mi/%s -n %s", slot.Name, ns)
		}
		e.next("Ask the operator for the state of the Mac", "kubectl macrack why mn/%s", lease.Status.NodeName)
	case "", rackv1alpha1.MacNodeLeasePending:
		e.next("Wait until the lease has a Mac", "kubectl wait --for=condition=Bound mnl/%s -n %s", name, ns)
	}
}

// nextForInstance adds the steps that help an instance.
func nextForInstance(e *Explanation, i *instancev1alpha1.MacOSInstance) {
	ns, name := i.Namespace, i.Name
	if rules.InstanceEnded(i.Status.Phase) {
		e.next("Delete the instance; it does not start again", "kubectl delete mi %s -n %s", name, ns)
		e.next("See whether its lease accepts another instance", "kubectl macrack why mnl/%s -n %s", i.Spec.LeaseName, ns)
		return
	}
	switch {
	case e.reason(instancev1alpha1.MacOSInstanceMacReady) != "":
		e.next("Ask the operator for the state of the Mac", "kubectl macrack why mn/%s", i.Status.NodeName)
	case e.reason(instancev1alpha1.MacOSInstanceScheduledCondition) != "":
		e.next("See the state of its lease", "kubectl macrack why mnl/%s -n %s", i.Spec.LeaseName, ns)
		if i.Status.PodName != "" {
			e.next("See why its placeholder pod is not scheduled", "kubectl describe pod %s -n %s", i.Status.PodName, ns)
		}
	case e.reason(instancev1alpha1.MacOSInstanceEnvironmentReady) != "":
		e.next("See the Secrets and ConfigMaps of the namespace", "kubectl get secrets,configmaps -n %s", ns)
	case e.reason(instancev1alpha1.MacOSInstanceImageReady) != "":
		e.next("See the state of the image", "kubectl describe macosimage %s", i.Spec.ImageName)
	case e.reason(instancev1alpha1.MacOSInstanceGuestReady) != "" && i.Status.PodName != "":
		e.next("See the console of the virtual machine", "kubectl logs %s -n %s", i.Status.PodName, ns)
	case i.Status.Phase == instancev1alpha1.MacOSInstanceRunning && i.Status.PodName != "":
		e.next("Open a shell in the virtual machine", "kubectl exec -it %s -n %s -- sh", i.Status.PodName, ns)
	}
}

// nextForMac adds the steps that help a Mac.
func nextForMac(e *Explanation, mac *rackv1alpha1.MacNode) {
	switch mac.Status.Phase {
	case rackv1alpha1.MacNodeQuarantined:
		e.next("List the problems, on the Mac", "macrack-agent doctor")
		e.next("End the quarantine without a reboot, as an administrator, after the cause is gone",
			`kubectl patch mn %s --subresource=status --type=merge -p '{"status":{"quarantine":null}}'`, mac.Name)
	case rackv1alpha1.MacNodeOffline:
		e.next("Check the power and the network; then list the problems, on the Mac", "macrack-agent doctor")
	case "", rackv1alpha1.MacNodePending:
		e.next("Let the Mac join, with the printed command", "macrack-agent token create %s --print-join-command", mac.Name)
	case rackv1alpha1.MacNodeMaintenance:
		e.next("Return the Mac to the pool", `kubectl patch mn %s --type=merge -p '{"spec":{"maintenance":false}}'`, mac.Name)
	case rackv1alpha1.MacNodeLeased, rackv1alpha1.MacNodeReleasing:
		if ref := mac.Status.LeaseRef; ref != nil {
			e.next("See the state of its lease", "kubectl macrack why mnl/%s -n %s", ref.Name, ref.Namespace)
		}
	}
}
