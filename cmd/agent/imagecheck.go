package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"macrack.io/macrack/pkg/agent/images"
	imagev1alpha1 "macrack.io/macrack/pkg/apis/image/v1alpha1"
	"macrack.io/macrack/pkg/apis/image/validation"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

const (
	// serverCheckTimeout bounds the dry run on the API server.
	serverCheckTimeout = 15 * time.Second
	// unknownDigest is a placeholder: the digest is known only after the push.
	unknownDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
)

// check checks the input files and the resulting MacOSImage before the push.
func (o *pushOptions) check(ctx context.Context, image *imagev1alpha1.MacOSImage, progress io.Writer) error {
	diskSize, err := images.Inspect(o.PushOptions)
	expected := image.DeepCopy()
	expected.Spec.Source.Digest = unknownDigest
	expected.Spec.DiskSize = scalar.NewQuantity(diskSize, resource.BinarySI)
	errs := []error{err}
	for _, fieldErr := range validation.ValidateManifest(expected) {
		if fieldErr.Field == "spec.diskSize" && diskSize == 0 {
			continue // the error of the disk is already listed
		}
		errs = append(errs, fmt.Errorf("MacOSImage %s: %w", image.Name, fieldErr))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("nothing was pushed: %w", err)
	}
	if !o.serverCheck {
		return nil
	}
	client, err := o.client()
	if clientcmd.IsEmptyConfig(err) {
		return nil // no API server configured
	}
	if err != nil {
		return fmt.Errorf("nothing was pushed: %w; use --server-check=false to push without a dry run", err)
	}
	ctx, cancel := context.WithTimeout(ctx, serverCheckTimeout)
	defer cancel()
	if err := dryRun(ctx, client, expected); err != nil {
		if refused := (*refusal)(nil); errors.As(err, &refused) || o.kubeconfig != "" || o.context != "" {
			return fmt.Errorf("nothing was pushed: %w; use --server-check=false to push without a dry run", err)
		}
		fmt.Fprintf(progress, "dry run of the MacOSImage skipped: %v\n", err)
	}
	return nil
}

func (o *pushOptions) client() (versioned.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context}).ClientConfig()
	if err != nil {
		return nil, err
	}
	return versioned.NewForConfig(config)
}

// refusal is the error of a server that rejects a MacOSImage.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// dryRun returns an error if the server rejects the image.
func dryRun(ctx context.Context, client versioned.Interface, image *imagev1alpha1.MacOSImage) error {
	macOSImages := client.ImageV1alpha1().MacOSImages()
	_, err := macOSImages.Create(ctx, image, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &refusal{err}
	case !apierrors.IsAlreadyExists(err):
		return err
	}
	existing, err := macOSImages.Get(ctx, image.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if existing.Status.Phase != imagev1alpha1.MacOSImageReady {
		return nil
	}
	// The same disk may be pushed again; only the digest shows whether it is the same.
	same := existing.DeepCopy()
	same.Spec.Source.Digest = image.Spec.Source.Digest
	if same.Spec.DiskSize.Int64() == image.Spec.DiskSize.Int64() { // independent of the notation
		same.Spec.DiskSize = image.Spec.DiskSize
	}
	if equality.Semantic.DeepEqual(same.Spec, image.Spec) {
		return nil
	}
	return &refusal{fmt.Errorf("MacOSImage %s is Ready and differs, so it cannot be changed; set another name with --name, or use a new tag instead of %s",
		image.Name, strings.TrimSpace(image.Spec.Source.Reference))}
}
