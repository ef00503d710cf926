package acceptance

// Sections of the automatic checks.
const (
	sectionHost = "Host, automatic"
	sectionVMs  = "VMs, automatic"
	sectionLong = "Over time, automatic with a person's help"
)

// automaticChecks use the code of the agent, without a cluster.
var automaticChecks = []Check{
	{
		ID: "doctor", Page: PageMacs, Section: sectionHost, Title: "Requirements of the host",
		Steps:    "run all checks of `macrack-agent doctor` that need no cluster: entitlement, launchd jobs, login session, sleep, address pool.",
		Expected: "none fails.", Run: checkDoctor,
	},
	{
		ID: "host-facts", Page: PageMacs, Section: sectionHost, Title: "Host facts and boot ID (`pkg/agent/host`)",
		Steps:    "read the facts of the Mac twice. A person compares them with System Settings > General > About.",
		Expected: "each fact is known and as shown there. Both times, the boot ID is the same.", Run: checkHost,
	},
	{
		ID: "keychain", Page: PageMacs, Section: sectionHost, Title: "Login keychain (`security`)",
		Steps:      "run `security show-keychain-info` in the login session, as a runner does after a failed start.",
		Expected:   "the login keychain is unlocked.",
		Background: "macOS 15 and later start no VM of macOS 15.2 or later while the login keychain is locked. The framework reports code 1 or -9, which does not name the cause.",
		Run:        checkKeychain,
	},
	{
		ID: "clones", Page: PageMacs, Section: sectionHost, Title: "Clones (`clonefile`)",
		Steps:    "clone the disk of the image, and measure the time and the free storage.",
		Expected: "on APFS, a clone takes less than a second and less than 64 MiB.", Run: checkClones,
	},
	{
		ID: "zeros", Page: PageMacs, Section: sectionHost, Title: "Holes and zeros (`F_PUNCHHOLE`)",
		Steps:    "write a file of 64 MiB, and zero the middle half, as a damaged chunk of a pull is.",
		Expected: "the middle half reads as zeros, the rest is unchanged.", Run: checkZeros,
	},
	{
		ID: "registry", Page: PageMacs, Section: sectionHost, Title: "Push and pull on APFS",
		Steps:    "with `--registry`, write a disk of 64 MiB with a hole, push it at once, pull it, and compare.",
		Expected: "no difference, because holes of APFS are not trusted.", Run: checkRegistry,
	},
	{
		ID: "boot", Page: PageMacs, Section: sectionVMs, Title: "Boot without a window",
		Steps:    "start a VM, and wait for its guest agent, MacRack's or tart's.",
		Expected: "the guest responds. The times of both steps are measured.", Run: checkBoot,
	},
	{
		ID: "identity", Page: PageMacs, Section: sectionVMs, Title: "Machine ID and MAC address",
		Steps:    "start two VMs of the same image. Read the MAC addresses with `ifconfig` in the guests, and compare the addresses.",
		Expected: "each guest has its own MAC address. Both have the address 192.168.127.2, each in its own network.", Run: checkIdentity,
	},
	{
		ID: "third-vm", Page: PageMacs, Section: sectionVMs, Title: "Limit of two VMs",
		Steps:    "start two VMs. Prepare a third one. Then start a third one outside of the slots, as another program does.",
		Expected: "there is no slot. macOS refuses with `VZErrorDomain` code 6 (`contract.IsLimitExceeded`). The two VMs continue.", Run: checkThirdVM,
	},
	{
		ID: "exec", Page: PageMacs, Section: sectionVMs, Title: "Commands on vsock",
		Steps:    "run commands in a guest: streams, exit codes, a signal, and 1 MiB of output.",
		Expected: "each has the right output and exit code.", Run: checkExec,
	},
	{
		ID: "setup", Page: PageMacs, Section: sectionVMs, Title: "Keys and startup script",
		Steps:    "start a VM with a key and a startup script that exits with 3.",
		Expected: "the exit code and the output arrive, and the key is in `authorized_keys` once.", Run: checkSetup,
	},
	{
		ID: "descriptors", Page: PageMacs, Section: sectionVMs, Title: "Descriptors of vsock",
		Steps:    "run many commands in parallel in one guest (1,000 on a Mac), while another guest runs a long one. Count the descriptors of the runner before and after.",
		Expected: "each command succeeds, the long one continues, and the number is the same.",
		Background: "vz 3.7.1 duplicates the framework's descriptor and closes the original. VZVirtioSocketConnection may close that number again when it is freed. " +
			"By then the number can belong to another connection (as in tart, pull request 1333).",
		Run: checkDescriptors,
	},
	{
		ID: "stop", Page: PageMacs, Section: sectionVMs, Title: "Graceful stop",
		Steps:    "stop a VM with a grace period of two minutes.",
		Expected: "the guest shuts down by itself. The runner has ended before the stop is reported.", Run: checkStop,
	},
	{
		ID: "inside-shutdown", Page: PageMacs, Section: sectionVMs, Title: "Shutdown from inside",
		Steps:    "run `sudo -n /sbin/shutdown -h now` in the guest.",
		Expected: "the VM ends as GuestShutdown.", Run: checkGuestShutdown,
	},
	{
		ID: "kills", Page: PageMacs, Section: sectionVMs, Title: "Leaks of the kernel's quota",
		Steps:    "kill the runners of two VMs with SIGKILL, and start two again. Repeat.",
		Expected: "each start succeeds. Otherwise the kernel has lost count, and only a reboot helps.", Run: checkKills,
	},
	{
		ID: "restarts", Page: PageMacs, Section: sectionVMs, Title: "Guests survive agent restarts",
		Steps:    "open the slots again, as an agent that restarts does. Repeat.",
		Expected: "the same VM, with the same process and start time. Its guest still answers.", Run: checkRestarts,
	},
	{
		ID: "socket", Page: PageMacs, Section: sectionVMs, Title: "Path and mode of sockets",
		Steps:    "look at `vm.sock` while a VM runs.",
		Expected: "it exists, and only its owner has access.", Run: checkSocket,
	},
	{
		ID: "erase", Page: PageMacs, Section: sectionVMs, Title: "Nothing remains of a VM",
		Steps:    "write a file in a guest, stop the VM, erase the slot, and list what is left.",
		Expected: "nothing is left.", Run: checkErase,
	},
	{
		ID: "sleep", Page: PageMacs, Section: sectionLong, Title: "Sleep and wake",
		Steps:    "start a VM. A person runs `pmset sleepnow`, and wakes the Mac after a minute.",
		Expected: "the guest still answers, and it is the same VM.", Run: checkSleep,
	},
	{
		ID: "upgrade", Page: PageMacs, Section: sectionLong, Title: "Upgrade",
		Steps:    "start a VM. A person installs the package again.",
		Expected: "the VM continues, with the same process and start time.", Run: checkUpgrade,
	},
	{
		ID: "reboot", Page: PageMacs, Section: sectionLong, Title: "Reboot",
		Steps:    "a person runs `sudo reboot` and nothing else, and then starts the acceptance again.",
		Expected: "the boot ID is another one, `rack` is logged in, and a VM starts.", Run: checkReboot,
	},
}
