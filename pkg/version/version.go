// Package version has the version of the binaries.
package version

import (
	"cmp"
	"fmt"
	"runtime/debug"
)

// Version and Commit identify the source of a binary. A build sets them with -ldflags "-X
// macrack.io/macrack/pkg/version.Version=v1.2.3"; Commit defaults to that of the build information
// of Go.
var (
	Version = "v0.1.0"
	Commit  = ""
)

// String returns the version and the commit, such as "v0.1.0 (commit 45cd7dd...)".
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return fmt.Sprintf("%s (commit %s)", Version, cmp.Or(Commit, commit(info.Settings), "unknown"))
}

// commit returns the commit in the settings of a build, with -dirty if the working tree had
// changes.
func commit(settings []debug.BuildSetting) string {
	revision, dirty := "", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + dirty
}
