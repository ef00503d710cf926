package check

import (
	"encoding/base64"
	"net"
	"regexp"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxMachineID is the maximum number of bytes of a machine ID.
const MaxMachineID = 4 << 10

// MachineID returns the errors in a machine ID.
func MachineID(id string, path *field.Path) field.ErrorList {
	if len(id) > MaxMachineID {
		return field.ErrorList{field.TooLong(path, "", MaxMachineID)}
	}
	data, err := base64.StdEncoding.DecodeString(id)
	if err != nil || base64.StdEncoding.EncodeToString(data) != id {
		return field.ErrorList{field.Invalid(path, id, "must be standard base64 of a machine identifier")}
	}
	return nil
}

// MACAddress returns the errors in the MAC address of a virtual machine.
func MACAddress(address string, path *field.Path) field.ErrorList {
	if len(address) > 64 {
		return field.ErrorList{field.TooLong(path, "", 64)}
	}
	mac, err := net.ParseMAC(address)
	switch {
	case err != nil || len(mac) != 6 || mac.String() != address:
		return field.ErrorList{field.Invalid(path, address, "must be six bytes in lower case, such as 5e:01:23:45:67:89")}
	case mac[0]&1 != 0 || mac[0]&2 == 0:
		return field.ErrorList{field.Invalid(path, address, "must be a locally administered unicast address: the second digit is 2, 6, a or e")}
	}
	return nil
}

var uid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// UID returns the errors in the UID of an object.
func UID(value types.UID, path *field.Path) field.ErrorList {
	if !uid.MatchString(string(value)) {
		return field.ErrorList{field.Invalid(path, short(string(value)), "must be a UID in lower case")}
	}
	return nil
}
