module github.com/Code-Hex/vz/v3

go 1.26.0

require (
	github.com/Code-Hex/go-infinity-channel v1.0.0
	golang.org/x/mod v0.41.0
	golang.org/x/sys v0.48.0
)
