package rules

import "strings"

// BootstrapGroup is the group of bootstrap tokens with which Macs join. A token that has it alone can become nothing.
const BootstrapGroup = "system:bootstrappers:macrack"

// NodesGroup is the group of the agents, as of all kubelets.
const NodesGroup = "system:nodes"

// nodeUserPrefix begins the name of the user that a Node is.
const nodeUserPrefix = "system:node:"

// BootstrapGroupOf returns the group of the bootstrap tokens that can become the Mac of this name, and no other. Names of
// groups have no dots, and names of Macs no colons, so that no two Macs have the same group.
func BootstrapGroupOf(node string) string {
	return BootstrapGroup + ":" + strings.ReplaceAll(node, ".", ":")
}

// BootstrapMacs returns the names of the Macs that a token with these groups can become.
func BootstrapMacs(groups []string) []string {
	var macs []string
	for _, group := range groups {
		if mac, ok := strings.CutPrefix(group, BootstrapGroup+":"); ok && mac != "" {
			macs = append(macs, strings.ReplaceAll(mac, ":", "."))
		}
	}
	return macs
}

// NodeUser returns the name of the user that a Node is.
func NodeUser(node string) string { return nodeUserPrefix + node }

// NodeOfUser returns the name of the Node that a user is, or nothing.
func NodeOfUser(user string) string {
	node, ok := strings.CutPrefix(user, nodeUserPrefix)
	if !ok {
		return ""
	}
	return node
}
