package acceptance

// hostChecks are the checks of the package and of the files on a Mac.
var hostChecks = []Check{
	{
		ID: "build-and-signature", Page: PageMacs, Section: `Package`, Title: `Build and signature`,
		Steps:    "run `artifacts/macos/build.sh v0.1.0` with identities and a notary profile.",
		Expected: "it ends with the path of the package. `spctl --assess --type install` accepts it.",
	},
	{
		ID: "cgo-for-macrack-vm", Page: PageMacs, Section: `Package`, Title: "cgo for `macrack-vm`",
		Steps:    `the same.`,
		Expected: "`go build` of `cmd/vm` links. `otool -L` names Virtualization.framework.",
	},
	{
		ID: "entitlement", Page: PageMacs, Section: `Package`, Title: `Entitlement`,
		Steps:    "run `codesign -d --entitlements - --xml /usr/local/bin/macrack-vm`.",
		Expected: "only `com.apple.security.virtualization`.",
	},
	{
		ID: "postinstall", Page: PageMacs, Section: `Package`, Title: `postinstall`,
		Steps:    "install. Run `ls -le ~/Library/LaunchAgents /usr/local/var/macrack`, `sudo -l -U rack` and `pmset -g`.",
		Expected: "two jobs of the user `rack`, the daemon in `/Library/LaunchDaemons` with the user `rack`, mode 0700, the one command, and `sleep 0`.",
	},
	{
		ID: "loaded-jobs", Page: PageMacs, Section: `Package`, Title: `Loaded jobs`,
		Steps:    "run `launchctl print system/io.macrack.agent`, and `launchctl print gui/$(id -u)/JOB` for `io.macrack.vm.0` and `.1`.",
		Expected: `the agent runs, or waits 10 s between attempts. The slots do not run.`,
	},
	{
		ID: "local-network-privacy", Page: PageMacs, Section: `Package`, Title: `Local network privacy`,
		Steps:    "use a kube-apiserver on the Mac's subnet and join over SSH. Run `grep \"no route to host\" agent.log`. Then upgrade the package.",
		Expected: `macOS does not ask. The MacNode is Available within one or two minutes, and stays Available after the upgrade.`,
	},
	{
		ID: "log-rotation", Page: PageMacs, Section: `Package`, Title: `Log rotation`,
		Steps:    "fill `agent.stderr.log` beyond 1 MB. Run `sudo newsyslog -v`, and restart the agent with `launchctl kickstart -k`.",
		Expected: "the file is rotated, with the owner `rack`. The new agent writes to the new file.",
	},
	{
		ID: "log-of-a-runner", Page: PageMacs, Section: `Package`, Title: `Log of a runner`,
		Steps:    "create an instance, then delete it. Run `ls /usr/local/var/macrack/slots/0` during and after.",
		Expected: "`runner.log` exists and contains `VM started`. Then it is gone.",
	},
	{
		ID: "uninstall", Page: PageMacs, Section: `Package`, Title: `Uninstall`,
		Steps:    "run `macrack-agent uninstall` while the Mac is leased, then when it is free.",
		Expected: `it is refused with a reason. Then the jobs, plists, keys and images are gone.`,
	},
	{
		ID: "tart-image", Page: PageMacs, Section: `Images on APFS`, Title: `tart image`,
		Steps:    "create a MacOSImage with the digest of one of `ghcr.io/cirruslabs/macos-*`, and an instance of it.",
		Expected: "`ImageReady`, and the guest boots. So far, the decoder has been tested only with hand-made streams.",
	},
	{
		ID: "holes", Page: PageMacs, Section: `Images on APFS`, Title: "Holes (`F_PUNCHHOLE`)",
		Steps:    "pull an image, and run `du -h` and `ls -lh` of `images/*/disk.img`.",
		Expected: "`du` shows much less.",
	},
	{
		ID: "damaged-chunk", Page: PageMacs, Section: `Images on APFS`, Title: `Damaged chunk`,
		Steps:    "run `TestRegistryFails` and `TestZero` on the Mac.",
		Expected: "both pass. `F_PUNCHHOLE` returns the space, or zeros are written.",
	},
}
