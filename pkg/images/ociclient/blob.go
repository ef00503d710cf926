package ociclient

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"
)

const acceptManifests = ocispec.MediaTypeImageManifest + ", " + ocispec.MediaTypeImageIndex

// Manifest fetches the manifest with that digest, even if the tag has moved.
func (c *Client) Manifest(ctx context.Context, pinned digest.Digest, limit int64) ([]byte, error) {
	return c.readAll(ctx, pinned, limit, func(ctx context.Context) (io.ReadCloser, error) {
		resp, err := c.get(ctx, "manifests/"+pinned.String(), http.Header{"Accept": {acceptManifests}})
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	})
}

// Blob fetches a small blob into memory.
func (c *Client) Blob(ctx context.Context, blob ocispec.Descriptor, limit int64) ([]byte, error) {
	if blob.Size > limit {
		return nil, fmt.Errorf("blob %s has %d bytes, and the limit is %d", blob.Digest, blob.Size, limit)
	}
	return c.readAll(ctx, blob.Digest, blob.Size, func(ctx context.Context) (io.ReadCloser, error) {
		return c.openAt(ctx, blob, 0)
	})
}

// get requests content of the repository. The library requires the length and the type of a
// manifest, which not all registries send, and cannot resume an interrupted transfer.
func (c *Client) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	ctx = auth.AppendRepositoryScope(ctx, c.repo.Reference, auth.ActionPull)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, permanent{err}
	}
	req.Header = header
	resp, err := c.repo.Client.Do(req)
	if err != nil {
		return nil, err
	}
	partial := resp.StatusCode == http.StatusPartialContent && header.Get("Range") != ""
	if resp.StatusCode != http.StatusOK && !partial {
		_ = resp.Body.Close()
		return nil, &StatusError{Host: resp.Request.URL.Host, Code: resp.StatusCode}
	}
	return resp, nil
}

func (c *Client) readAll(ctx context.Context, want digest.Digest, limit int64, fetch func(context.Context) (io.ReadCloser, error)) (data []byte, err error) {
	err = c.retry(ctx, func(ctx context.Context) error {
		body, err := fetch(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = body.Close() }()
		if data, err = io.ReadAll(io.LimitReader(body, limit+1)); err != nil {
			return err
		}
		if int64(len(data)) > limit {
			return permanent{fmt.Errorf("registry %s sends more than %d bytes for %s", c.Host(), limit, want)}
		}
		if got := digest.FromBytes(data); got != want {
			return &DigestError{Host: c.Host(), Want: want, Got: got}
		}
		return nil
	})
	return data, err
}

// openAt returns the content of a blob from an offset.
func (c *Client) openAt(ctx context.Context, blob ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	header := http.Header{}
	if offset > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, blob.Size-1))
	}
	resp, err := c.get(ctx, "blobs/"+blob.Digest.String(), header)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusPartialContent {
		return resp.Body, nil
	}
	if size := resp.ContentLength; size >= 0 && size != blob.Size {
		_ = resp.Body.Close()
		return nil, permanent{fmt.Errorf("registry %s sends %d bytes for %s, and the manifest has %d; push the image again",
			c.Host(), size, blob.Digest, blob.Size)}
	}
	// A registry that does not support ranges sends the whole content.
	if _, err := io.CopyN(io.Discard, resp.Body, offset); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp.Body, nil
}

// PushBlob pushes a blob unless the repository has it, and reports whether it uploaded the blob.
func (c *Client) PushBlob(ctx context.Context, blob ocispec.Descriptor, data []byte) (uploaded bool, err error) {
	err = c.retry(ctx, func(ctx context.Context) error {
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
	name := cmp.Or(c.repo.Reference.Reference, manifest.Digest.String())
	return c.retry(ctx, func(ctx context.Context) error {
		return c.repo.Manifests().PushReference(ctx, manifest, bytes.NewReader(data), name)
	})
}

// Open returns a blob's content. An interrupted transfer resumes at its offset. The caller must
// verify the content.
func (c *Client) Open(ctx context.Context, blob ocispec.Descriptor) io.ReadCloser {
	return &reader{c: c, ctx: ctx, blob: blob, backoff: backoff{c: c}}
}

type reader struct {
	c       *Client
	ctx     context.Context
	blob    ocispec.Descriptor
	offset  int64
	settled int64 // offset of the last reset of the failure count
	current io.ReadCloser
	backoff backoff
}

func (r *reader) Read(p []byte) (int, error) {
	for r.offset < r.blob.Size {
		n, err := r.read(p[:min(int64(len(p)), r.blob.Size-r.offset)])
		r.offset += int64(n)
		if r.offset-r.settled >= progress {
			r.settled, r.backoff.failures = r.offset, 0
		}
		if n > 0 {
			return n, nil
		}
		if err != nil {
			_ = r.Close()
			if err := r.backoff.again(r.ctx, err); err != nil {
				return 0, err
			}
		}
	}
	return 0, io.EOF
}

func (r *reader) read(p []byte) (n int, err error) {
	if r.current == nil {
		if r.current, err = r.c.openAt(r.ctx, r.blob, r.offset); err != nil {
			return 0, err
		}
	}
	n, err = r.current.Read(p)
	if n > 0 {
		return n, nil // a persistent error recurs
	}
	if err != nil && !errors.Is(err, errStalled) {
		err = fmt.Errorf("registry %s interrupted the transfer after %d of %d bytes of %s: %w", r.c.Host(), r.offset, r.blob.Size, r.blob.Digest, err)
	}
	return 0, err
}

func (r *reader) Close() error {
	if r.current == nil {
		return nil
	}
	err := r.current.Close()
	r.current = nil
	return err
}
