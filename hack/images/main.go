// Images builds the container images of MacRack: one binary each, for every platform, on an empty
// base. The same commit always has the same digests.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/spf13/cobra"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"macrack.io/macrack/pkg/version"
	"macrack.io/macrack/test/cluster/build"
)

// localPrefix is the registry in the names of images that are not pushed. The chart has it by
// default.
const localPrefix = "macrack.io"

// products are the programs with an image, by their folder in cmd.
var products = []product{
	{folder: "apiserver", title: "macrack-apiserver", description: "The API server of MacRack: leases of whole Macs, and the rules for them"},
	{folder: "controllers", title: "macrack-controllers", description: "The controllers of MacRack, and the certificates of its servers"},
	{folder: "ledger", title: "macrack-ledger", description: "Exports and verifies the ledger of MacRack, and backs up its etcd"},
	{folder: "macrack-runners", module: "runners", title: "macrack-runners", description: "Runs CI jobs on leased Macs"},
}

// product is a program. Its module is a folder of the repository; empty means the root.
type product struct{ folder, module, title, description string }

type options struct {
	root, dir string
	prefix    string
	plainHTTP bool
	cosignKey string
	platforms []string

	commit  string
	created time.Time
	out     io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	o := &options{platforms: []string{"linux/amd64", "linux/arm64"}}
	cmd := &cobra.Command{
		Use:           "images",
		Short:         "Build the container images into an OCI layout, or push them to a registry",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.out = cmd.OutOrStdout()
			if o.root, err = build.Root(); err != nil {
				return err
			}
			o.dir = filepath.Join(o.root, ".dev", "images")
			if o.commit, o.created, err = source(cmd.Context(), o.root); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&o.prefix, "push", "", "Push to this registry and prefix, such as registry.example.com/macrack. By default, the images are only written to .dev/images.")
	cmd.Flags().BoolVar(&o.plainHTTP, "plain-http", false, "With --push: the registry has no TLS.")
	cmd.Flags().StringVar(&o.cosignKey, "cosign-key", "", "With --push: sign the images with this key of cosign.")
	cmd.Flags().StringSliceVar(&o.platforms, "platforms", o.platforms, "Platforms of the images.")
	return cmd
}

// source returns the commit of the checkout, with -dirty after changes, and its time.
func source(ctx context.Context, root string) (commit string, committed time.Time, err error) {
	git := func(args ...string) string {
		out, gitErr := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...).Output()
		err = errors.Join(err, gitErr)
		return strings.TrimSpace(string(out))
	}
	commit = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
	seconds := git("log", "-1", "--format=%ct")
	if err != nil {
		return "", time.Time{}, fmt.Errorf("reading the commit of %s: %w; images are built from a git checkout", root, err)
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	return commit, time.Unix(unix, 0).UTC(), err
}

func (o *options) run(ctx context.Context) error {
	if o.cosignKey != "" && o.prefix == "" {
		return errors.New("signing needs a registry, because the signatures are stored beside the images; set IMAGES=registry/prefix")
	}
	if err := os.RemoveAll(o.dir); err != nil {
		return err
	}
	local, err := layout.Write(o.dir, empty.Index)
	if err != nil {
		return err
	}
	digests := map[string]v1.Hash{}
	for _, p := range products {
		index, sboms, err := o.image(ctx, p)
		if err != nil {
			return fmt.Errorf("building the image of %s: %w", p.title, err)
		}
		if digests[p.folder], err = index.Digest(); err != nil {
			return err
		}
		ref := fmt.Sprintf("%s/%s:%s", cmp.Or(o.prefix, localPrefix), p.title, version.Version)
		// containerd reads the first annotation, and other tools the second.
		annotations := map[string]string{"io.containerd.image.name": ref, "org.opencontainers.image.ref.name": version.Version}
		if err := local.AppendIndex(index, layout.WithAnnotations(annotations)); err != nil {
			return err
		}
		for _, sbom := range sboms {
			if err := local.AppendImage(sbom); err != nil {
				return err
			}
		}
		if o.prefix != "" {
			if err := o.push(ctx, ref, index, sboms); err != nil {
				return err
			}
		}
		if err := o.sign(ctx, ref, digests[p.folder]); err != nil {
			return err
		}
		fmt.Fprintf(o.out, "%s@%s\n", ref, digests[p.folder])
	}
	return o.writeValues(digests)
}

// push copies images from the layout to a registry, with the credentials of docker and podman.
func (o *options) push(ctx context.Context, reference string, index v1.ImageIndex, sboms []v1.Image) error {
	local, err := oci.NewFromFS(ctx, os.DirFS(o.dir))
	if err != nil {
		return err
	}
	repository, err := remote.NewRepository(reference)
	if err != nil {
		return err
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return fmt.Errorf("docker credentials: %w", err)
	}
	repository.PlainHTTP = o.plainHTTP
	repository.Client = &auth.Client{Client: retry.DefaultClient, Cache: auth.NewCache(), Credential: credentials.Credential(store)}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = oras.Copy(ctx, local, digest.String(), repository, repository.Reference.Reference, oras.DefaultCopyOptions)
	for _, sbom := range sboms {
		digest, digestErr := sbom.Digest()
		if err = errors.Join(err, digestErr); err != nil {
			break
		}
		_, err = oras.Copy(ctx, local, digest.String(), repository, digest.String(), oras.DefaultCopyOptions)
	}
	if err != nil && !o.plainHTTP && strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		err = fmt.Errorf("%w; for a registry without TLS, set PLAIN_HTTP=1", err)
	}
	if err != nil {
		return fmt.Errorf("pushing %s: %w", reference, err)
	}
	return nil
}

// sign signs a pushed image and the images of its platforms.
func (o *options) sign(ctx context.Context, ref string, digest v1.Hash) error {
	if o.cosignKey == "" {
		return nil
	}
	repository, _, _ := strings.Cut(ref, ":"+version.Version)
	cmd := exec.CommandContext(ctx, "cosign", "sign", "--yes", "--recursive", "--key", o.cosignKey, repository+"@"+digest.String())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("signing %s with cosign: %w", ref, err)
	}
	return nil
}

// writeValues writes the values that make the chart use the pushed images, by digest.
func (o *options) writeValues(digests map[string]v1.Hash) error {
	if o.prefix == "" {
		return nil
	}
	values := fmt.Sprintf("image:\n  registry: %s\n  tag: %s\n  digests:\n    apiserver: %s\n    controllers: %s\n    ledger: %s\n",
		o.prefix, version.Version, digests["apiserver"], digests["controllers"], digests["ledger"])
	return os.WriteFile(filepath.Join(o.dir, "values.yaml"), []byte(values), 0o644)
}
