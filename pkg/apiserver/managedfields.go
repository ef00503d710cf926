package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"macrack.io/macrack/pkg/apis/rack/validation"
)

// The field manager spends seconds on tens of thousands of managers, and no request with so many is
// useful. Requests are refused where they are decoded, before the field manager sees them.
// Validation covers the other paths.

// managersError returns an error for an object with more managed fields than validation accepts.
func managersError(n int) error {
	if n <= validation.MaxManagedFields {
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("metadata.managedFields: Too many: %d: must have at most %d items; leave it out", n, validation.MaxManagedFields))
}

// boundedSerializer refuses to decode objects with too many managed fields.
type boundedSerializer struct{ runtime.NegotiatedSerializer }

// DecoderToVersion returns the decoder of requests.
func (s boundedSerializer) DecoderToVersion(serializer runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return boundedDecoder{s.NegotiatedSerializer.DecoderToVersion(serializer, gv)}
}

type boundedDecoder struct{ runtime.Decoder }

// Decode is that of the decoder, and returns an error for an object with too many managed fields.
func (d boundedDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, gvk, err := d.Decoder.Decode(data, defaults, into)
	if m, notMeta := meta.Accessor(obj); notMeta == nil {
		if tooMany := managersError(len(m.GetManagedFields())); tooMany != nil {
			return nil, gvk, tooMany
		}
	}
	return obj, gvk, err
}

// boundPatches adds a filter that refuses merge patches with too many managed fields. Patches need
// a filter: strategic merge patches bypass the decoder, and a decoder error would repeat a whole
// merge patch.
func (c *Config) boundPatches() {
	build, limit := c.Generic.BuildHandlerChainFunc, c.Generic.MaxRequestBodyBytes
	c.Generic.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		return build(boundedPatches(handler, limit), config)
	}
}

// boundedPatches returns a handler that passes the requests to handler whose patches have few
// managed fields. Bodies of more than limit bytes are passed too: handler refuses them.
func boundedPatches(handler http.Handler, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		contentType, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
		isMerge := contentType == string(types.StrategicMergePatchType) || contentType == string(types.MergePatchType)
		if req.Method != http.MethodPatch || err == nil && !isMerge {
			handler.ServeHTTP(w, req)
			return
		}
		body := req.Body
		data, readErr := io.ReadAll(io.LimitReader(body, limit+1))
		if readErr == nil {
			if err := managersError(managersOfPatch(data)); err != nil {
				responsewriters.ErrorNegotiated(err, Codecs, schema.GroupVersion{Version: "v1"}, w, req)
				return
			}
		}
		req.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data), body), body}
		handler.ServeHTTP(w, req)
	})
}

// managersOfPatch returns the number of managed fields in a patch.
func managersOfPatch(patch []byte) int {
	var object, metadata map[string]json.RawMessage // keys are matched as they are written
	var managers []json.RawMessage
	_ = json.Unmarshal(patch, &object) // the handler reports a patch that is not JSON
	_ = json.Unmarshal(object["metadata"], &metadata)
	_ = json.Unmarshal(metadata["managedFields"], &managers)
	return len(managers)
}
