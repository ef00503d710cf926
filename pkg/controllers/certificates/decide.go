package certificates

import (
	"fmt"
	"net"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/rules"
)

// Reasons of decisions.
const (
	reasonJoin    = "MacJoins"
	reasonServing = "MacServes"

	reasonForeignToken   = "ForeignToken"
	reasonNotForMac      = "TokenNotForMac"
	reasonNoMacNode      = "NoMacNode"
	reasonMacIsLive      = "MacIsLive"
	reasonTokenSpent     = "TokenSpent"
	reasonMalformed      = "Malformed"
	reasonForeignNode    = "ForeignNode"
	reasonForeignSubject = "ForeignSubject"
	reasonForeignName    = "ForeignName"
)

// A verdict is the decision about a request. The zero value leaves the request to other approvers.
type verdict struct {
	approve         bool
	reason, message string
}

func approve(reason, format string, args ...any) verdict {
	return verdict{true, reason, fmt.Sprintf(format, args...)}
}

func deny(reason, format string, args ...any) verdict {
	return verdict{false, reason, fmt.Sprintf(format, args...)}
}

// facts are the inputs of a decision other than the request.
type facts struct {
	// mac is the MacNode with the requested name; nil if it does not exist.
	mac *rackv1alpha1.MacNode
	// tokenUse is an approved request of the same token for another key, or nil.
	tokenUse *certificatesv1.CertificateSigningRequest
	// nodes are all Nodes.
	nodes []*corev1.Node
	// reservedAddresses are the addresses of the cluster's API servers and Services.
	reservedAddresses []address
}

// apiServer is the holder of the addresses of API servers.
const apiServer = "kube-apiserver"

// address is an IP address and its holder.
type address struct {
	ip     net.IP
	holder string
}

// decideClient decides about the client certificate of a Mac's agent.
func decideClient(r *request, f facts) verdict {
	token := r.token()
	switch {
	case token != "" && slices.Contains(r.Spec.Groups, rules.BootstrapGroup):
		return decideJoin(r, token, f)
	case r.node == "" || f.mac == nil:
		return verdict{} // another kind of Node
	case token != "":
		return deny(reasonForeignToken, "bootstrap token %s is not for Macs; create one for Mac %s with `macrack-agent token create %[2]s`", token, r.node)
	case r.requestingNode() == r.node:
		return verdict{} // a renewal, which kube-controller-manager approves
	case r.requestingNode() != "":
		return deny(reasonForeignNode, "Node %s may not become Mac %s", r.requestingNode(), r.node)
	}
	return deny(reasonForeignSubject, "user %q may not become Mac %s; use a bootstrap token created for it with `macrack-agent token create %[2]s`", r.Spec.Username, r.node)
}

// decideJoin decides about the first certificate of a Mac. A token is valid once, for the one Mac
// that it was created for.
func decideJoin(r *request, token string, f facts) verdict {
	if err := r.check(); err != nil {
		return deny(reasonMalformed, "%v", err)
	}
	if !slices.Contains(r.Spec.Groups, rules.BootstrapGroupOf(r.node)) {
		whose := "for no Mac"
		if macs := rules.BootstrapMacs(r.Spec.Groups); len(macs) > 0 {
			whose = "for Mac " + strings.Join(macs, " and ")
		}
		return deny(reasonNotForMac, "bootstrap token %s is %s, not for %s; create one with `macrack-agent token create %[3]s`", token, whose, r.node)
	}
	switch {
	case f.mac == nil:
		return deny(reasonNoMacNode, "MacNode %q not found; an administrator must register the Mac before it joins", r.node)
	case f.mac.DeletionTimestamp != nil:
		return deny(reasonNoMacNode, "MacNode %q is being deleted", r.node)
	case meta.IsStatusConditionTrue(f.mac.Status.Conditions, rackv1alpha1.MacNodeReady):
		return deny(reasonMacIsLive, "name already in use; the agent of Mac %s, serial number %s, is online. If it runs on this Mac, stop it and join again once the MacNode is not Ready; otherwise join under this Mac's own name",
			r.node, f.mac.Spec.SerialNumber)
	case f.tokenUse != nil:
		return deny(reasonTokenSpent, "bootstrap token %s has been used at %s, and a token is valid once; create another with `macrack-agent token create %s`",
			token, f.tokenUse.CreationTimestamp.UTC().Format("15:04:05Z"), r.node)
	}
	return approve(reasonJoin, "bootstrap token %s was created for Mac %s, serial number %s", token, r.node, f.mac.Spec.SerialNumber)
}

// decideServing decides about the certificate with which a Mac's agent serves logs and commands to
// kube-apiserver.
func decideServing(r *request, f facts) verdict {
	if f.mac == nil {
		return verdict{} // another kind of Node
	}
	if r.requestingNode() != r.node {
		return deny(reasonForeignSubject, "user %q may not serve as Mac %s", r.Spec.Username, r.node)
	}
	if err := r.check(); err != nil {
		return deny(reasonMalformed, "%v", err)
	}
	if len(r.x509.DNSNames)+len(r.x509.IPAddresses) == 0 {
		return deny(reasonMalformed, "a serving certificate needs the Node's name or one of its IP addresses")
	}
	for _, name := range r.x509.DNSNames {
		if name != r.node {
			return deny(reasonForeignName, "DNS name %q does not belong to the Mac; use %q", name, r.node)
		}
	}
	for _, ip := range r.x509.IPAddresses {
		if why := refuseAddress(r.node, ip, f); why != "" {
			return deny(reasonForeignName, "IP address %s does not belong to the Mac alone: %s", ip, why)
		}
	}
	return approve(reasonServing, "all names belong to Mac %s", r.node)
}

// refuseAddress returns the reason for which a Mac may not serve at an address, or "". The agent
// itself reports the Node's addresses, so an address counts only if nothing else has it.
func refuseAddress(node string, ip net.IP, f facts) string {
	own := false
	for _, n := range f.nodes {
		if !hasAddress(n, ip) {
			continue
		}
		if n.Name == node {
			own = true
		} else if !ip.IsLoopback() { // a loopback address reaches no other host
			return fmt.Sprintf("it belongs to Node %s", n.Name)
		}
	}
	switch {
	case ip.IsUnspecified() || ip.IsMulticast():
		return "it is not the address of a host"
	case !ip.IsLoopback():
		if i := slices.IndexFunc(f.reservedAddresses, func(a address) bool { return a.ip.Equal(ip) }); i >= 0 {
			return "it belongs to " + f.reservedAddresses[i].holder
		}
	}
	if !own {
		return "it is not an address of the Node"
	}
	return ""
}

func hasAddress(n *corev1.Node, ip net.IP) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		return (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) && ip.Equal(net.ParseIP(a.Address))
	})
}
