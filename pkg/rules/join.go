package rules

import "strings"

// BootstrapGroup is the group of bootstrap tokens with which Macs join. This group alone does not
// permit a token to join any Mac.
const BootstrapGroup = "system:bootstrappers:macrack"

// NodesGroup is the group of agents, as of all kubelets.
const NodesGroup = "system:nodes"

// nodeUserPrefix is the prefix of the user names of Nodes.
const nodeUserPrefix = "system:node:"

// BootstrapGroupOf returns the group of the bootstrap tokens that can join as the Mac with this
// name only. Names of groups have no dots and names of Macs have no colons, so each Mac has its own
// group.
func BootstrapGroupOf(node string) string {
	return BootstrapGroup + ":" + strings.ReplaceAll(node, ".", ":")
}

// BootstrapMacs returns the names of the Macs as which a token with these groups can join.
func BootstrapMacs(groups []string) []string {
	var macs []string
	for _, group := range groups {
		if mac, ok := strings.CutPrefix(group, BootstrapGroup+":"); ok && mac != "" {
			macs = append(macs, strings.ReplaceAll(mac, ":", "."))
		}
	}
	return macs
}

// NodeUser returns the user name of a Node.
func NodeUser(node string) string { return nodeUserPrefix + node }

// NodeOfUser returns the name of the Node with the given user name, or an empty string.
func NodeOfUser(user string) string {
	node, ok := strings.CutPrefix(user, nodeUserPrefix)
	if !ok {
		return ""
	}
	return node
}
