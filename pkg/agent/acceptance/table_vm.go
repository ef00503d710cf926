package acceptance

// vmChecks are the checks of the agent and of virtual machines.
var vmChecks = []Check{
	{
		ID: "boot-id", Page: PageMacs, Section: `Agent`, Title: "Boot ID (`kern.bootsessionuuid`)",
		Steps:    "note `status.bootID`, restart the agent, and reboot.",
		Expected: `it is the same after a restart, and another after a reboot.`,
	},
	{
		ID: "commands-of-doctor", Page: PageMacs, Section: `Agent`, Title: "Commands of doctor (`pkg/agent/doctor/system.go`)",
		Steps:    "break one thing at a time: log out, `sudo`, FileVault on, `pmset -a sleep 10`, `defaults delete` of the DHCP setting. Continue with `launchctl bootout` of a slot, a signature without entitlement, `sudo date` 10 minutes off, and a VM of another program. Then lock the login keychain, enable automatic updates and the firewall, and set `Shared_Net_Address` to the Mac's own network.",
		Expected: "one line `fail` or `warn` for each, and no such line after the repair.",
	},
	{
		ID: "start-of-a-slot", Page: PageMacs, Section: `Agent`, Title: "Start of a slot (`launchctl kickstart`)",
		Steps:    "create an instance, and run `launchctl print` of its slot.",
		Expected: "the job runs. It continues when `launchctl kill SIGKILL` kills the agent's job.",
	},
	{
		ID: "no-delay-by-launchd", Page: PageMacs, Section: `Agent`, Title: `No delay by launchd`,
		Steps:    `delete the instance and create another at once, ten times.`,
		Expected: `each is Running within seconds. The agent kickstarts a job again if launchd delays it.`,
	},
	{
		ID: "end-of-the-session", Page: PageMacs, Section: `Agent`, Title: `End of the session`,
		Steps:    "log `rack` out with a running VM.",
		Expected: `the guest shuts down within 60 s. The instance is Failed: "The virtual machine was stopped on the Mac, without a request from the cluster".`,
	},
	{
		ID: "peer-of-a-socket", Page: PageMacs, Section: `Agent`, Title: "Peer of a socket (`LOCAL_PEERCRED`)",
		Steps:    "as another user, run `nc -U /usr/local/var/macrack/slots/0/vm.sock`.",
		Expected: `refused.`,
	},
	{
		ID: "reboot-out-of-quarantine", Page: PageMacs, Section: `Agent`, Title: `Reboot out of quarantine`,
		Steps:    "set `WhenEmpty` in the RackConfig, and put the Mac into quarantine with KernelQuotaStuck and no instance.",
		Expected: `it reboots, returns with another boot ID, and is Available. NodeQuarantined and NodeRecovered are recorded.`,
	},
	{
		ID: "boot-without-a-window", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Boot without a window`,
		Steps:    "create an instance, and run `kubectl get mi -w`.",
		Expected: `Running, and its address answers to SSH.`,
	},
	{
		ID: "refusal-by-the-kernel", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Refusal by the kernel`,
		Steps:    `run two instances, start a third VM with another program, then stop it. Then run one VM of another program and two of ours.`,
		Expected: "`VZErrorDomain` code 6 is recognized (`contract.IsLimitExceeded`). The record InstanceRejected has layer Kernel.",
	},
	{
		ID: "state-changes", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `State changes`,
		Steps:    "shut the guest down from inside. Crash it with `sudo dtrace -w -n 'BEGIN{panic();}'` in the guest.",
		Expected: `Stopped, then Failed with domain, code and text of the framework's error, within 5 s. The runner's process is gone.`,
	},
	{
		ID: "disk-under-load", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Disk under load`,
		Steps:    "run `fio` with many random writes, and a build with Xcode, for an hour in two guests. Then run `diskutil verifyVolume /` in the guests.",
		Expected: "no error. Disks use the caching mode `Cached` and the synchronization `Fsync`.",
	},
	{
		ID: "devices", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Devices`,
		Steps:    "run `system_profiler SPAudioDataType` and `ioreg -c AppleVirtualKeyboard` in a guest.",
		Expected: `a guest of macOS 14 has a sound device, the Mac keyboard and the Mac trackpad. The Mac plays no sound of the guest.`,
	},
	{
		ID: "guest-agent-on-vsock", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Guest agent on vsock`,
		Steps:    "run `kubectl exec` and `kubectl logs` of the placeholder pod, and the startup script.",
		Expected: `they reach the guest. The exit code of the script is in the status.`,
	},
	{
		ID: "descriptors-of-vsock", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Descriptors of vsock`,
		Steps:    "run 1,000 `kubectl exec POD -- true` in parallel. Keep a `kubectl exec -it` and an exec of a second instance open meanwhile. Run `lsof -p` of the runner before and after.",
		Expected: "each ends with 0, and the open ones stay open. `runner.log` has no `bad file descriptor`. The number of descriptors is the same as before.",
	},
	{
		ID: "isolated-network", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Isolated network`,
		Steps:    "create an instance of a class without `network`. In the guest, run `ipconfig getpacket en0`, `curl https://github.com`, and `nc -z -w 3` with port 22 of the Mac's address, of its gateway and of the other guest.",
		Expected: "the address is 192.168.127.2, `curl` works, and each `nc` fails. `kubectl logs` has the reasons.",
	},
	{
		ID: "isolated-network-under-load", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Isolated network under load`,
		Steps:    "download 10 GB in the guest with four connections. Run `top` and `log show` for `ENOBUFS` on the Mac.",
		Expected: `1 Gbit/s or more, less than two cores of the runner, and no stall.`,
	},
	{
		ID: "caches", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: "Caches (`hdiutil`, virtiofs)",
		Steps:    "lease the Mac with a cache of 1Gi. Use it in two instances, in the second with `readOnly`. In the first, run `ls -la /Users/Shared/macrack-caches/`, create a symbolic link to `/etc`, and write 2 GiB into the cache with `dd`. Write in the second. Then stop both, reboot the Mac, and start another instance. Release the lease.",
		Expected: "the script has `MACRACK_CACHES`. `dd` ends with \"No space left on device\", and `df` on the Mac shows 1 GiB less at most. The second instance cannot write, and reads what the first wrote. The link shows the `/etc` of the guest. The content is there after the reboot. After the release, `caches` of the state directory is empty, `hdiutil info` has no image of it, and the scrub report names the cache.",
	},
	{
		ID: "ports-without-a-guest-agent", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Ports of a guest without a guest agent`,
		Steps:    "use an image with Remote Login and without a guest agent. Run `kubectl port-forward` for 22 and 5900.",
		Expected: "`ssh` and Screen Sharing work.",
	},
	{
		ID: "address-pool", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Address pool`,
		Steps:    "set `network: {mode: NAT}` in the class. Run `sudo plutil -p` of `com.apple.InternetSharing.default.plist`. Run 300 instances one after the other, and read `/var/db/dhcpd_leases`.",
		Expected: "`DHCPLeaseTimeSecs` is 600. The 300th has an address of the same network, and none has one of 169.254.0.0/16.",
	},
	{
		ID: "addresses", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Addresses`,
		Steps:    "read `status.ipAddress` with and without the guest agent, with and without NAT.",
		Expected: "it is right. Isolated guests have source DHCP. The others have GuestAgent, DHCP (`/var/db/dhcpd_leases`) or ARP.",
	},
	{
		ID: "no-login-session", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `No login session`,
		Steps:    "log `rack` out (macOS 15 and later).",
		Expected: `no VM starts, and the instance and doctor report the reason. After five minutes, SlotsHealthy is False with NoLoginSession.`,
	},
	{
		ID: "locked-keychain", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Locked keychain`,
		Steps:    "run `security lock-keychain` in Terminal, and create an instance of macOS 26. Then unlock it, and end the quarantine.",
		Expected: `SlotsHealthy is False with KeychainLocked, and the instance waits. Then it runs.`,
	},
	{
		ID: "power-loss", Page: PageMacs, Section: "VMs (`pkg/vm/vz`)", Title: `Power loss`,
		Steps:    `pull the plug with two running guests.`,
		Expected: `the Mac comes back. Both instances end as Failed or Stopped, once. The Mac is not in quarantine.`,
	},
}

// guestChecks are the checks inside guests.
var guestChecks = []Check{
	{
		ID: "guest-cid", Page: PageGuests, Section: ``, Title: `The host's CID in a guest`,
		Steps:    "run `kubectl exec`. Then run `macrack-guest-agent` as another user of the guest, and connect to it with a program in the guest.",
		Expected: "`kubectl exec` works, and the program cannot connect. The host has CID 2, and the guest another.",
	},
	{
		ID: "guest-poller", Page: PageGuests, Section: ``, Title: `vsock and Go's poller`,
		Steps:    "run 1,000 `kubectl exec POD -- true`, and `lsof -p` of the guest agent.",
		Expected: `the number of descriptors is the same as before.`,
	},
	{
		ID: "guest-terminals", Page: PageGuests, Section: ``, Title: `Terminals`,
		Steps:    "run `kubectl exec -it POD -- zsh`, resize the window, run `stty size`, and leave with ^D.",
		Expected: `the size follows, and no process remains.`,
	},
	{
		ID: "guest-login-session", Page: PageGuests, Section: ``, Title: `Login session`,
		Steps:    "run `kubectl exec POD -- launchctl managername`, and `security show-keychain-info`. Use both in a startup script too. Then log the user out and repeat.",
		Expected: "`Aqua`, and the keychain is unlocked. After the logout, commands run in `System`.",
	},
	{
		ID: "guest-disk-growth", Page: PageGuests, Section: ``, Title: `Growth of the disk`,
		Steps:    "use an image of 60 GiB with a class of 100 GiB, and run `df -h /`. Repeat with an image that has a recovery partition.",
		Expected: `100 GiB before the startup script runs. The other image keeps its size, and the console names the partition.`,
	},
	{
		ID: "guest-user", Page: PageGuests, Section: ``, Title: "Commands as `--user`",
		Steps:    "log the user out, and run `kubectl exec POD -- id`.",
		Expected: "`admin` with its groups, the primary one first. The limit is 16, because macOS accepts no more (`setgroups`).",
	},
	{
		ID: "guest-shutdown", Page: PageGuests, Section: ``, Title: `Shutdown`,
		Steps:    "run `kubectl delete mi`.",
		Expected: "`/sbin/shutdown -h now` ends the guest within the grace period.",
	},
	{
		ID: "guest-early-connection", Page: PageGuests, Section: ``, Title: `A connection before the guest has booted`,
		Steps:    `watch the runner's goroutines while a guest boots.`,
		Expected: `Connect fails or waits, with at most one more goroutine per minute.`,
	},
}
