package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"sigs.k8s.io/yaml"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

func newImageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Push macOS images to a registry, and manage those on this Mac",
	}
	cmd.AddCommand(newImagePushCommand(), newImageListCommand(), newImageRemoveCommand())
	return cmd
}

type pushOptions struct {
	images.PushOptions
	name       string
	macOS      string
	xcode      string
	guestAgent string
	tartVM     string
	pullSecret string
	quiet      bool

	kubeconfig  string
	context     string
	serverCheck bool
}

func newImagePushCommand() *cobra.Command {
	o := &pushOptions{}
	cmd := &cobra.Command{
		Use:   "push {--tart-vm NAME|DIR | --disk FILE --aux FILE --hardware-model BASE64} --macos VERSION[:BUILD] --guest-agent VERSION [flags] REFERENCE",
		Short: "Push a disk to a registry and print the MacOSImage to apply",
		Long: "Push compresses a raw disk in chunks. It skips chunks that are all zeros or that the registry already has. " +
			"Before that, it checks the files and the MacOSImage, with a dry run on the API server if a kubeconfig exists. " +
			"It writes the MacOSImage, pinned by the image's digest, to standard output. The same disk yields the same digest. " +
			"Credentials are those of docker and podman ($DOCKER_CONFIG or ~/.docker, credential helpers included).",
		Example: "  macrack-agent image push --disk disk.img --aux nvram.bin --hardware-model \"$(cat model.b64)\" \\\n" +
			"    --macos 26.1:25B78 --xcode 26.1:17B55 --guest-agent 0.1.0 registry.example.com/macos/26:xcode-26 | kubectl apply -f -\n\n" +
			"  macrack-agent image push --tart-vm tahoe-xcode --macos 26.1:25B78 --xcode 26.1:17B55 --guest-agent 0.1.0 \\\n" +
			"    registry.example.com/macos/26:xcode-26 | kubectl apply -f -",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer cancel()
			o.Reference = args[0]
			if o.tartVM != "" {
				if err := useTartVM(&o.PushOptions, o.tartVM); err != nil {
					return fmt.Errorf("nothing was pushed: %w", err)
				}
			}
			return o.push(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Disk, "disk", "", "Raw disk image of a virtual machine that is shut down. Required without --tart-vm.")
	flags.StringVar(&o.Aux, "aux", "", "Auxiliary storage (NVRAM) of the virtual machine. Required without --tart-vm.")
	flags.StringVar(&o.HardwareModel, "hardware-model", "", "VZMacHardwareModel of the virtual machine, in base64. Required without --tart-vm.")
	flags.StringVar(&o.MachineID, "machine-identifier", "", "VZMacMachineIdentifier of the virtual machine, in base64. Required only for an image with spec.identity FromImage.")
	flags.StringVar(&o.tartVM, "tart-vm", "", "Virtual machine of tart that is shut down, instead of --disk, --aux and --hardware-model: its name in TART_HOME (default ~/.tart), or its directory.")
	flags.StringVar(&o.macOS, "macos", "", "Version of macOS in the image, and its build, such as 26.1:25B78. Required.")
	flags.StringVar(&o.xcode, "xcode", "", "Version of Xcode in the image, and its build, such as 26.1:17B55; empty for none.")
	flags.StringVar(&o.guestAgent, "guest-agent", "", "Version of the guest agent in the image, MacRack's or tart's. Required.")
	flags.StringVar(&o.name, "name", "", "Name of the MacOSImage. Default: derived from REFERENCE, such as macos-26-xcode-26.")
	flags.StringVar(&o.pullSecret, "pull-secret", "", "Secret for image pulls, as NAMESPACE/NAME; empty for none.")
	flags.IntVar(&o.Parallel, "parallel", 4, "Number of chunks that are compressed and pushed in parallel. Each takes up to 200 MiB of memory.")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "Do not show progress.")
	flags.BoolVar(&o.serverCheck, "server-check", true, "Validate the MacOSImage with a server-side dry run before the push.")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig for the dry run. Default: KUBECONFIG or ~/.kube/config, if it exists.")
	flags.StringVar(&o.context, "context", "", "Context of the kubeconfig. Default: the current one.")
	for _, name := range []string{"macos", "guest-agent"} {
		_ = cmd.MarkFlagRequired(name)
	}
	cmd.MarkFlagsOneRequired("tart-vm", "disk")
	cmd.MarkFlagsRequiredTogether("disk", "aux", "hardware-model")
	for _, name := range []string{"disk", "aux", "hardware-model", "machine-identifier"} {
		cmd.MarkFlagsMutuallyExclusive("tart-vm", name)
	}
	return cmd
}

// useTartVM reads the virtual machine of --tart-vm.
func useTartVM(push *images.PushOptions, nameOrDir string) error {
	tartHome := os.Getenv("TART_HOME")
	if tartHome == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		tartHome = filepath.Join(home, ".tart")
	}
	dir, err := images.TartDir(tartHome, nameOrDir)
	if err != nil {
		return err
	}
	return push.UseTartVM(dir)
}

func (o *pushOptions) push(ctx context.Context, out, progress io.Writer) error {
	image, err := o.image()
	if err != nil {
		return err
	}
	if err := o.check(ctx, image, progress); err != nil {
		return err
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return fmt.Errorf("docker credentials: %w", err)
	}
	o.Credential = credentials.Credential(store)
	o.Clock = clock.RealClock{}
	if !o.quiet {
		o.OnProgress = func(p images.Progress) { fmt.Fprintf(progress, "pushed %s\n", p) }
	}
	began := o.Clock.Now()
	pushed, err := images.Push(ctx, o.PushOptions)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%s: disk of %s with %s of data, %s in the registry, of which %s were uploaded, in %s\n",
		pushed.Digest, images.Size(pushed.DiskSize), images.Size(pushed.Bytes), images.Size(pushed.Compressed), images.Size(pushed.Uploaded), o.Clock.Since(began).Round(time.Millisecond))
	image.Spec.Source.Digest = pushed.Digest.String()
	image.Spec.DiskSize = scalar.NewQuantity(pushed.DiskSize, resource.BinarySI)
	return printImage(out, image)
}

// image returns the MacOSImage, except for the results of the push.
func (o *pushOptions) image() (*imagev1alpha1.MacOSImage, error) {
	reference, err := registry.ParseReference(o.Reference)
	if err != nil {
		return nil, fmt.Errorf("invalid reference %q; use one such as registry.example.com/macos/26:xcode-26: %w", o.Reference, err)
	}
	if _, err := reference.Digest(); err == nil {
		return nil, fmt.Errorf("invalid reference %q; use a tag or none, because the digest is known only after the push", o.Reference)
	}
	if o.name == "" {
		o.name = nameOf(reference)
	}
	image := &imagev1alpha1.MacOSImage{
		TypeMeta:   metav1.TypeMeta{APIVersion: imagev1alpha1.SchemeGroupVersion.String(), Kind: "MacOSImage"},
		ObjectMeta: metav1.ObjectMeta{Name: o.name},
		Spec:       imagev1alpha1.MacOSImageSpec{Source: imagev1alpha1.ImageSource{Reference: o.Reference}, HardwareModel: o.HardwareModel},
	}
	for _, content := range []struct{ name, version string }{
		{imagev1alpha1.ContentMacOS, o.macOS}, {imagev1alpha1.ContentXcode, o.xcode}, {imagev1alpha1.ContentGuestAgent, o.guestAgent},
	} {
		if content.version != "" {
			version, build, _ := strings.Cut(content.version, ":")
			image.Spec.Contents = append(image.Spec.Contents, imagev1alpha1.ImageContent{Name: content.name, Version: version, Build: build})
		}
	}
	if o.pullSecret != "" {
		namespace, name, found := strings.Cut(o.pullSecret, "/")
		if !found || namespace == "" || name == "" {
			return nil, fmt.Errorf("invalid --pull-secret %q; use NAMESPACE/NAME", o.pullSecret)
		}
		image.Spec.PullSecretRef = &imagev1alpha1.SecretReference{Namespace: namespace, Name: name}
	}
	return image, nil
}

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

// nameOf derives the name of a MacOSImage from a reference: macos-26-xcode-26 from
// registry.example.com/macos/26:xcode-26.
func nameOf(reference registry.Reference) string {
	name := reference.Repository
	if reference.Reference != "" {
		name += "-" + reference.Reference
	}
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-.")
}

// printImage writes a manifest without a status.
func printImage(out io.Writer, image *imagev1alpha1.MacOSImage) error {
	data, err := json.Marshal(image)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	delete(fields, "status")
	if data, err = yaml.Marshal(fields); err != nil {
		return err
	}
	_, err = out.Write(data)
	return err
}

func newImageListCommand() *cobra.Command {
	var stateDir string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the images on this Mac",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store := imageStore(stateDir)
			held, err := store.List()
			if err != nil {
				return err
			}
			unfinished, err := store.Unfinished()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tLAST-USED")
			for _, image := range held {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", image.Name, image.Digest, images.Size(image.Bytes), image.LastUsedAt.UTC().Format(time.RFC3339))
			}
			for _, image := range unfinished {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", image.Name, image.Digest, images.Size(image.Bytes), "(incomplete)")
			}
			return w.Flush()
		},
	}
	addStateDir(cmd, &stateDir)
	return cmd
}

func newImageRemoveCommand() *cobra.Command {
	var stateDir string
	cmd := &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove images from this Mac; they are pulled again when an instance needs them",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, names []string) error {
			store := imageStore(stateDir)
			var errs []error
			for _, name := range names {
				errs = append(errs, store.Remove(name))
			}
			return errors.Join(errs...)
		},
	}
	addStateDir(cmd, &stateDir)
	return cmd
}

func addStateDir(cmd *cobra.Command, stateDir *string) {
	cmd.Flags().StringVar(stateDir, "state-dir", "", "The agent's state directory. Required.")
	_ = cmd.MarkFlagRequired("state-dir")
}

// imageStore returns the images of an agent.
func imageStore(stateDir string) *images.OCI {
	return &images.OCI{Dir: filepath.Join(stateDir, "images"), Clock: clock.RealClock{}}
}
