// Package verify checks whether an image is usable, by its manifest and config.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
)

// ReasonError is an error with a reason of the condition Ready.
type ReasonError struct {
	Reason string
	Err    error
}

// Error returns the message of the error.
func (e *ReasonError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its reason.
func (e *ReasonError) Unwrap() error { return e.Err }

func because(reason string, err error) error {
	if err == nil {
		return nil
	}
	return &ReasonError{reason, err}
}

// Reason returns the reason of the condition Ready of a MacOSImage whose verification returned err;
// Verified for nil.
func Reason(err error) string {
	var known *ReasonError
	var status *ociclient.StatusError
	switch {
	case err == nil:
		return imagev1alpha1.ReasonVerified
	case errors.As(err, &known):
		return known.Reason
	case ociclient.IsUnauthorized(err):
		return imagev1alpha1.ReasonUnauthorized
	case errors.As(err, &status) && status.Code == http.StatusNotFound:
		return imagev1alpha1.ReasonManifestUnknown
	}
	return imagev1alpha1.ReasonUnreachable
}

// Source returns an error unless a source names an OCI repository and pins the image by its digest.
func Source(source imagev1alpha1.ImageSource) error {
	pinned, err := digest.Parse(source.Digest)
	if err != nil || pinned.Algorithm() != digest.SHA256 {
		return because(imagev1alpha1.ReasonMalformed,
			fmt.Errorf("invalid spec.source.digest %q; use sha256: and 64 lowercase hexadecimal digits", source.Digest))
	}
	reference, err := registry.ParseReference(source.Reference)
	if err != nil {
		return because(imagev1alpha1.ReasonMalformed,
			fmt.Errorf("invalid spec.source.reference %q; use an OCI reference such as registry.example.com/macos/26:xcode-26: %w", source.Reference, err))
	}
	if other, err := reference.Digest(); err == nil && other != pinned {
		return because(imagev1alpha1.ReasonMalformed,
			fmt.Errorf("spec.source.reference has the digest %s, but spec.source.digest is %s", other, pinned))
	}
	return nil
}

// Image fetches the manifest and the config of an image, and returns an error unless they match
// spec.
func Image(ctx context.Context, client *ociclient.Client, spec *imagev1alpha1.MacOSImageSpec) error {
	layout, hardwareModel, err := Layout(ctx, client, digest.Digest(spec.Source.Digest))
	if err != nil {
		return err
	}
	if err := Bootable(layout, cmp.Or(spec.HardwareModel, hardwareModel)); err != nil {
		return err
	}
	if spec.Identity == imagev1alpha1.ImageIdentityFromImage && layout.MachineID == "" {
		return because(imagev1alpha1.ReasonIncomplete, errors.New("the image has no machine identifier, which spec.identity FromImage requires; push it again with --machine-identifier, or with --tart-vm"))
	}
	if layout.DiskSize > spec.DiskSize.Int64() {
		return because(imagev1alpha1.ReasonDiskTooLarge, fmt.Errorf("the image's disk has %d bytes; spec.diskSize is %d bytes and must not be less", layout.DiskSize, spec.DiskSize.Int64()))
	}
	return nil
}

// Bootable returns an error unless an image has the parts without which its disk cannot boot.
// hardwareModel is that of the MacOSImage or of the image.
func Bootable(layout *format.Layout, hardwareModel string) error {
	switch {
	case layout.Aux == nil:
		return because(imagev1alpha1.ReasonIncomplete, errors.New("the image has no auxiliary storage, which virtual machines require; push it again with --aux"))
	case hardwareModel == "":
		return because(imagev1alpha1.ReasonIncomplete, errors.New("neither the image nor spec.hardwareModel has a hardware model; set spec.hardwareModel, or push the image again with --hardware-model"))
	}
	return nil
}

// Layout fetches the manifest of a digest and its config. It returns the layout of the image and
// its hardware model, in base64; empty if unknown.
func Layout(ctx context.Context, client *ociclient.Client, pinned digest.Digest) (*format.Layout, string, error) {
	manifest, err := client.Manifest(ctx, pinned, format.MaxManifest)
	if err != nil {
		return nil, "", err
	}
	layout, err := format.Parse(manifest)
	if err != nil {
		return nil, "", because(imagev1alpha1.ReasonMalformed, err)
	}
	config, err := client.Blob(ctx, layout.Config, format.MaxConfig)
	if err != nil {
		err = fmt.Errorf("config of the image: %w", err)
		if Reason(err) == imagev1alpha1.ReasonManifestUnknown {
			err = because(imagev1alpha1.ReasonIncomplete, err)
		}
		return nil, "", err
	}
	hardwareModel, err := layout.Complete(config)
	return layout, hardwareModel, because(imagev1alpha1.ReasonMalformed, err)
}

// Credential returns the credentials in a Secret of type kubernetes.io/dockerconfigjson. Its errors
// do not quote them.
func Credential(secret *corev1.Secret) (auth.CredentialFunc, error) {
	config := secret.Data[corev1.DockerConfigJsonKey]
	if secret.Type != corev1.SecretTypeDockerConfigJson || len(config) == 0 {
		return nil, because(imagev1alpha1.ReasonPullSecretUnreadable, fmt.Errorf("Secret %s/%s (spec.pullSecretRef) has the type %q: it must be %s",
			secret.Namespace, secret.Name, secret.Type, corev1.SecretTypeDockerConfigJson))
	}
	store, err := credentials.NewMemoryStoreFromDockerConfig(config)
	if err != nil {
		return nil, because(imagev1alpha1.ReasonPullSecretUnreadable, fmt.Errorf("Secret %s/%s (spec.pullSecretRef) is not in the format of %s",
			secret.Namespace, secret.Name, corev1.SecretTypeDockerConfigJson))
	}
	return credentials.Credential(store), nil
}
