package check

import "time"

// The rules, written independently of the server.
const (
	slotsPerMac = 2
	floor       = 24 * time.Hour
	retention   = 90 * 24 * time.Hour // of records, at least

	floorFinalizer = "macrack.io/floor"
	systemSpace    = "macrack-system"
)

// Prefixes of keys in etcd.
const (
	prefix          = "/registry/"
	nodePrefix      = prefix + "rack.macrack.io/macnodes/"
	leasePrefix     = prefix + "rack.macrack.io/macnodeleases/"
	recordPrefix    = prefix + "rack.macrack.io/auditrecords/"
	instancePrefix  = prefix + "instance.macrack.io/macosinstances/"
	imagePrefix     = prefix + "image.macrack.io/macosimages/"
	indexPrefix     = prefix + "macrack.io/index/"
	headIndex       = "ledger-head"
	checkpointIndex = "ledger-checkpoint/"
)

// indexKinds are the kinds of index keys about objects.
var indexKinds = []string{"serial-number", "machine-id", "mac-address", "image-use", headIndex}

// NodeKey returns the key of a MacNode in etcd.
func NodeKey(name string) string { return nodePrefix + name }

// LeaseKey returns the key of a MacNodeLease in etcd.
func LeaseKey(namespace, name string) string { return leasePrefix + namespace + "/" + name }

// InstanceKey returns the key of a MacOSInstance in etcd.
func InstanceKey(namespace, name string) string { return instancePrefix + namespace + "/" + name }

// ImageKey returns the key of a MacOSImage in etcd.
func ImageKey(name string) string { return imagePrefix + name }
