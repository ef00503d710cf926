package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent"
	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/node"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/certificatemetrics"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
	"macrack.io/macrack/pkg/version"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
)

const (
	backendSim = "sim"
	backendVZ  = "vz"

	launcherLaunchd = "launchd"
	launcherProcess = "process"

	logMegabytes, logFiles = 50, 5
)

type options struct {
	nodeName            string
	kubeconfig          string
	bootstrapKubeconfig string
	stateDir            string
	vmBinary            string
	backend             string
	simHostDir          string
	simSerialNumber     string
	listen              string
	nodeAddress         string
	clientCAFile        string
	clientNames         []string
	simGuestAgent       string
	rotateServerCert    bool
	launcher            string
	logFile             string
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.nodeName, "node-name", o.nodeName, "Name of the Node and of the MacNode. Default: the name under which this Mac joined, or else the host name.")
	flags.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig of the agent. It is written once the agent has joined. Default: kubeconfig in --state-dir.")
	flags.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", o.bootstrapKubeconfig, "Kubeconfig with a bootstrap token with which the agent joins. Not required after \"macrack-agent join\".")
	flags.StringVar(&o.stateDir, "state-dir", o.stateDir, "Directory of the slots, images, keys and state. Keep the path short; it is part of socket paths.")
	flags.StringVar(&o.vmBinary, "vm-binary", o.vmBinary, "Path of macrack-vm. Default: in the folder of this program.")
	flags.StringVar(&o.backend, "backend", o.backend, "Hypervisor: vz (Virtualization.framework) or sim (simulated).")
	flags.StringVar(&o.simHostDir, "sim-host-dir", o.simHostDir, "Directory of the simulated Mac. Required with --backend=sim.")
	flags.StringVar(&o.simSerialNumber, "sim-serial-number", o.simSerialNumber, "Serial number of the simulated Mac, used if --sim-host-dir is new. Required with --backend=sim.")
	flags.StringVar(&o.listen, "listen", o.listen, "Address (host:port) of the agent's HTTPS API for kubectl logs, exec and port-forward. If empty, the API is off.")
	flags.StringVar(&o.nodeAddress, "node-address", o.nodeAddress, "IP address of the agent in the cluster. Default: the host of --listen, or else the source address of connections to kube-apiserver.")
	flags.StringVar(&o.clientCAFile, "client-ca-file", o.clientCAFile, "CA of kube-apiserver's client certificate, the only permitted client of --listen. Default: the CA of the kubeconfig.")
	flags.StringSliceVar(&o.clientNames, "client-names", o.clientNames, "Common names of kube-apiserver's client certificate for kubelets. Default: "+node.DefaultClientName+", as in kubeadm clusters.")
	flags.StringVar(&o.simGuestAgent, "sim-guest-agent", o.simGuestAgent, "Path of macrack-guest-agent, which simulated guests run as a process of this host. For development only: commands of tenants run on this host, confined to a directory of the slot as far as Landlock can. If empty, simulated guests run no commands.")
	flags.BoolVar(&o.rotateServerCert, "rotate-server-certificates", o.rotateServerCert, "Serve --listen with a certificate signed by the cluster. Otherwise use pki/agent-server.crt in --state-dir, created self-signed if missing.")
	flags.StringVar(&o.launcher, "launcher", o.launcher, "Launcher of virtual machines: launchd (the jobs of the package) or process. Default: launchd with --backend=vz, else process.")
	flags.StringVar(&o.logFile, "log-file", o.logFile, "Log file, rotated at 50 MB, with five older files kept. Default: standard error.")
}

func (o *options) complete() error {
	var errs []error
	required := func(flag, value string) {
		if value == "" {
			errs = append(errs, fmt.Errorf("--%s is required", flag))
		}
	}
	if err := completeNodeName(&o.nodeName, o.stateDir); err != nil {
		return err
	}
	if o.vmBinary == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.vmBinary = filepath.Join(filepath.Dir(self), "macrack-vm")
	}
	required("state-dir", o.stateDir)
	if o.kubeconfig == "" {
		o.kubeconfig = filepath.Join(o.stateDir, kubeconfigName)
	}
	switch o.backend {
	case backendVZ:
	case backendSim:
		required("sim-host-dir", o.simHostDir)
		required("sim-serial-number", o.simSerialNumber)
	default:
		errs = append(errs, fmt.Errorf("invalid --backend %q; use %s or %s", o.backend, backendVZ, backendSim))
	}
	switch o.launcher {
	case launcherLaunchd, launcherProcess:
	case "":
		o.launcher = launcherProcess
		if o.backend == backendVZ {
			o.launcher = launcherLaunchd
		}
	default:
		errs = append(errs, fmt.Errorf("invalid --launcher %q; use %s or %s", o.launcher, launcherLaunchd, launcherProcess))
	}
	if o.listen != "" && o.nodeAddress == "" {
		address, _, err := net.SplitHostPort(o.listen)
		if err != nil {
			errs = append(errs, fmt.Errorf("--listen: %w", err))
		}
		if ip := net.ParseIP(address); ip == nil || !ip.IsUnspecified() {
			o.nodeAddress = address
		}
	}
	// Runners start in other working directories, so their paths must be absolute.
	for _, path := range []*string{&o.stateDir, &o.simHostDir, &o.simGuestAgent, &o.vmBinary, &o.kubeconfig} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			errs = append(errs, err)
		}
		*path = absolute
	}
	return errors.Join(errs...)
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:          "macrack-agent",
		Short:        "The agent of a Mac in a MacRack fleet",
		Version:      version.String(),
		SilenceUsage: true,
	}
	o := &options{backend: backendVZ, stateDir: defaultStateDir, rotateServerCert: true}
	run := &cobra.Command{
		Use:   "run",
		Short: "Join the cluster and run virtual machines; they outlive the agent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			o.log()
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer cancel()
			return o.run(ctx)
		},
	}
	o.addFlags(run.Flags())
	cmd.AddCommand(run, newJoinCommand(), newTokenCommand(), newDoctorCommand(), newAcceptanceCommand(), newUninstallCommand(), newImageCommand())
	return cmd
}

// log writes the log to the log file, if one is set. Standard error then gets only fatal errors,
// because it is not rotated while the process runs.
func (o *options) log() {
	if o.logFile == "" {
		return
	}
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	_ = flags.Set("stderrthreshold", "FATAL") // a constant that klog accepts
	klog.LogToStderr(false)
	klog.SetOutput(&lumberjack.Logger{Filename: o.logFile, MaxSize: logMegabytes, MaxBackups: logFiles})
}

func (o *options) run(ctx context.Context) error {
	if err := os.MkdirAll(o.stateDir, 0o700); err != nil {
		return err
	}
	config, err := o.platform()
	if err != nil {
		return err
	}
	if o.listen != "" {
		if config.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen); err != nil {
			return err
		}
		defer config.Listener.Close()
	}
	certDir := filepath.Join(o.stateDir, certDirName)
	client, err := credentials.Join(ctx, credentials.Options{
		NodeName: o.nodeName, Kubeconfig: o.kubeconfig, BootstrapKubeconfig: o.bootstrapKubeconfig, CertDir: certDir,
	})
	if err != nil {
		return err
	}
	if config.ClientCAFile == "" {
		if config.ClientCAFile, err = o.clusterCA(); err != nil {
			return err
		}
	}
	client = apiclient.Protobuf(client)
	client = apiclient.BoundRequests(client, apiclient.RequestTimeout)
	if config.Kube, err = kubernetes.NewForConfig(client); err != nil {
		return err
	}
	if o.listen != "" && o.nodeAddress == "" {
		if o.nodeAddress, err = addressTowards(ctx, client.Host); err != nil {
			return fmt.Errorf("address of this Mac unknown: %w; set --node-address", err)
		}
		config.Address = o.nodeAddress
	}
	if o.listen != "" && o.rotateServerCert {
		if config.ServingCertificate, err = credentials.Serving(ctx, config.Kube, o.nodeName, o.nodeAddress, certDir); err != nil {
			return err
		}
	}
	config.Certificates = map[string]certificatemetrics.Source{
		"client": func() (*x509.Certificate, error) {
			certificate, _, err := credentials.Read(certDir)
			return certificate, err
		},
	}
	if serving := config.ServingCertificate; serving != nil {
		config.Certificates["serving"] = certificatemetrics.TLS(func() (*tls.Certificate, error) { return serving(nil) })
	} else if o.listen != "" {
		config.Certificates["serving"] = certificatemetrics.File(node.CertificateFile(certDir))
	}
	if config.Macrack, err = versioned.NewForConfig(client); err != nil {
		return err
	}
	a, err := agent.New(*config)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// addressTowards returns the source address of connections to a server. It sends no packets.
func addressTowards(ctx context.Context, server string) (string, error) {
	address, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	port := address.Port()
	if port == "" {
		port = "443"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(address.Hostname(), port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}

// clusterCA returns a file with the CA of the kubeconfig. In most clusters that CA also signed
// kube-apiserver's client certificate.
func (o *options) clusterCA() (string, error) {
	client, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return "", err
	}
	if client.CAFile != "" || len(client.CAData) == 0 {
		return client.CAFile, nil
	}
	path := filepath.Join(o.stateDir, certDirName, "cluster-ca.crt")
	return path, contract.WriteFile(path, client.CAData)
}

// platform returns the settings that depend on the backend.
func (o *options) platform() (*agent.Config, error) {
	config := &agent.Config{
		NodeName: o.nodeName, StateDir: o.stateDir, Clock: clock.RealClock{}, Version: version.Version,
		Address: o.nodeAddress, ClientCAFile: o.clientCAFile, ClientNames: o.clientNames,
	}
	process := &slots.Process{Binary: o.vmBinary, Args: []string{"--backend=" + o.backend}}
	config.Launcher = process
	if o.launcher == launcherLaunchd {
		config.Launcher = &slots.Launchd{UID: os.Getuid()}
	}
	config.NewMachineID = process.NewMachineID
	config.Images = imageStore(o.stateDir)
	if o.backend == backendVZ {
		var err error
		config.Host, err = host.New(o.stateDir)
		return config, err
	}
	if err := sim.HostDir(o.simHostDir).Init(o.simSerialNumber, host.NewBootID()); err != nil {
		return nil, err
	}
	process.Args = append(process.Args, "--sim-host-dir="+o.simHostDir)
	if o.simGuestAgent != "" {
		process.Args = append(process.Args, "--sim-guest-agent="+o.simGuestAgent)
	}
	config.Host = &host.Simulated{Dir: sim.HostDir(o.simHostDir), StateDir: o.stateDir}
	return config, nil
}
