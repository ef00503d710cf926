package ociclient

import (
	"bytes"
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PushBlob pushes a blob unless the repository has it, and reports whether it uploaded the blob.
func (c *Client) PushBlob(ctx context.Context, blob ocispec.Descriptor, data []byte) (uploaded bool, err error) {
	err = c.Retry(ctx, func(ctx context.Context) error {
		if found, err := c.repo.Blobs().Exists(ctx, blob); found || err != nil {
			return err
		}
		uploaded = true // also true if only the response was lost
		return c.repo.Blobs().Push(ctx, blob, bytes.NewReader(data))
	})
	return uploaded, err
}

// PushManifest pushes a manifest and sets the tag of the client's reference, if it has one.
func (c *Client) PushManifest(ctx context.Context, manifest ocispec.Descriptor, data []byte) error {
	name := c.Tag()
	if name == "" {
		name = manifest.Digest.String()
	}
	return c.Retry(ctx, func(ctx context.Context) error {
		return c.repo.Manifests().PushReference(ctx, manifest, bytes.NewReader(data), name)
	})
}
